"""Passes: each a function from one level to the next, or a check that returns its module."""
