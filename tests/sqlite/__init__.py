"""What can happen to a lock file."""
