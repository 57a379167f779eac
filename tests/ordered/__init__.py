"""What stands on a directory of things in order: over a model of an ensemble."""
