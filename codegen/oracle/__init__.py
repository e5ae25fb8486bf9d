"""Three interpreters in NumPy that compute what a program must, and share no code with passes."""
