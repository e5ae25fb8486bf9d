"""Where arrays lie: the layouts of values, and the parts of them that ranks hold and need."""
