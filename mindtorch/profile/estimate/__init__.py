"""Running a program without data (SPEC C4): every device is one that holds none, and its questions are answered."""
