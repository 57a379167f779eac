"""The contracts between the protocol, the stores and the runtimes: messages, protocols, units and limits."""
