"""Room 3 of the middle end: loop nests, the memory they use, and how they run."""
