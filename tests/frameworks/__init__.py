"""Adapters for frameworks, and the programs of their pages."""
