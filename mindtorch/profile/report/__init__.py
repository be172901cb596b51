"""What is told of what was seen."""
