"""The protocol: what is decided, never how it is carried. Imports no clock, socket, thread or random source."""
