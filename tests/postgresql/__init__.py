"""Tests of the PostgreSQL stores on real servers."""
