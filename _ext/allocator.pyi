"""For the modules beside it; Python sees nothing of it."""
