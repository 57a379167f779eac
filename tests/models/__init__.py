"""Tests of what runs the models."""
