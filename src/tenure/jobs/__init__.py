"""Jobs that run once in a window: which window it is, and what a job's record says. Pure functions, without a store."""
