"""Derivatives: what is differentiated, and how: from a piece of a Graph, more ops of it."""
