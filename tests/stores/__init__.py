"""Tests of what stores may be like."""
