"""Room 4 of the middle end: from loops to compute phases and exchanges in order."""
