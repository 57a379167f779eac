"""Tests of the console: what it shows, whom it lets in, what it refuses, and how often it looks at the store."""
