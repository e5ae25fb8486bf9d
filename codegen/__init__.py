"""The spmd compiler: Python source in, one native image out. Knows no MPI and no processes."""
