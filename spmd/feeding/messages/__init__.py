"""What the processes of feeding say to each other, and the sockets and keys by which they do."""
