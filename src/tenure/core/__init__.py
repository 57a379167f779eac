"""The lock protocol, without any input or output: it imports no clock, socket, thread or random source."""
