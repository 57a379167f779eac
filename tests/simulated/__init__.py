"""The simulation: what it promises, and that it would notice."""
