"""From a Python function to a Graph: run once on arrays that record what is done to them."""
