"""Runners of jobs: each starts the ranks of one job, beside the agent that offers the slots."""
