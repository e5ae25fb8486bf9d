"""What feeding asks of the machine it runs on: its name and memory, clocks, child processes."""
