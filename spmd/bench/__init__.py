"""Measuring exchanges, and what the machine allows."""
