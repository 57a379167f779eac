"""Tests of the two packages as they are published."""
