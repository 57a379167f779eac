"""The conformance suite on every store that this package has."""
