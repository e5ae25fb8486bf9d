"""Room 2 of the middle end: layouts of values, and the parts of them that ranks hold and need."""
