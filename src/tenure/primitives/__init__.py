"""The primitives: lock, reentrant lock, semaphore, reader/writer lock, multilock and election, a file each."""
