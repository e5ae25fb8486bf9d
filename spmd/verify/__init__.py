"""Proving an image right for any number of ranks."""
