"""Room 5 of the middle end: what must hold between levels, and what a running image checks."""
