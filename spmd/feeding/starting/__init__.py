"""What starts schedulers, workers and consumers: a command, a run, Dask or Ray."""
