"""Launching: one life cycle for every way to run an image."""
