"""The scheduler: who is there, who works for whom, what it keeps on disk."""
