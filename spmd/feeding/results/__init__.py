"""What is made of work: examples computed, packed for other hosts, shared with this one."""
