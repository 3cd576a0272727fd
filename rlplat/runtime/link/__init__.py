"""Messages between this process and the others: the socket, and the threads around it."""
