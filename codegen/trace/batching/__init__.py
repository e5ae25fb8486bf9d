"""spmd.vmap: a function of one member of a batch, as ops on all members at once."""
