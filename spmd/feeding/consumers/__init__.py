"""Consumers: threads in processes of ranks that ask workers for examples and fill rings."""
