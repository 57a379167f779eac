"""Multilocks and elections."""
