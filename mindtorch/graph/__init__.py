"""Views on the tape."""
