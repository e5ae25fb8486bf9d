"""The levels of a program: their grammars, their texts, and walks over them."""
