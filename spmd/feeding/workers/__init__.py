"""Workers: the processes that compute examples, and the agent that starts and watches them."""
