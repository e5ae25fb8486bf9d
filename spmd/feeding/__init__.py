"""Feeding: workers that compute examples, a scheduler that assigns them, consumers in ranks."""
