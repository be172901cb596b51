"""What ops cost: FLOPs, bytes, and the accelerator that they are estimated for."""
