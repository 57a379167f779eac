"""What tests of faults share: processes that work under locks, what they work on, and what may be demanded."""
