"""Real servers, which other tests use, and tests of how they are started and disturbed."""
