"""Tests of what Tenure offers to the tests of its users."""
