"""Symbolic integers: their expressions, bounds, proofs and spellings."""
