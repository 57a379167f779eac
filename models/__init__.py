"""Models of the protocol, for the Spin model checker, and what runs them."""
