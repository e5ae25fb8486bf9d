"""The compiler of spmd: Python source in, one native image out. It knows no MPI, no processes."""
