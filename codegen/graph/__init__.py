"""Room 1 of the middle end: rewrites of the Graph, and of the Program, as array operations."""
