"""What a program must compute: three interpreters in NumPy that share no code with the passes."""
