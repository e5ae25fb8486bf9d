"""What the compiler tells of its decisions: layouts and exchanges, and what would avoid them."""
