"""Checkers that follow what a pass has made from its result alone, with no code of the pass."""
