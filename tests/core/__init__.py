"""The parts of the protocol, one at a time."""
