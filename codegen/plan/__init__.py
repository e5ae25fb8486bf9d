"""The Plan: loops over buffers, exchanges, steps; and what its makers share."""
