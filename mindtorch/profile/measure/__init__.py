"""What is seen of a program while it runs."""
