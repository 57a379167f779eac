"""Tests of `tenure doctor`: the rules, and what is seen of real servers that are wrongly set."""
