"""Tests of the PostgreSQL store alone, and of its faults on real servers."""
