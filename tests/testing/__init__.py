"""Tests of what Holdfast offers to the tests of its users."""
