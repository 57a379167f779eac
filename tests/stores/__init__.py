"""Tests of stores with unusual properties."""
