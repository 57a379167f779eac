"""What the protocol, the stores and the runtimes agree on: messages, the two contracts, units and limits."""
