"""The grant table: the executable specification of who holds a name and who waits for it."""
