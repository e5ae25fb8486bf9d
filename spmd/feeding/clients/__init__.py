"""Clients of a scheduler: pipelines are checked, submitted, and opened for a run."""
