"""Symbolic integers: expressions, bounds, proofs."""
