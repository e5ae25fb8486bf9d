"""Python's control flow and state while tracing."""
