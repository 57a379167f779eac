"""Jobs that run once: windows, records, and calls."""
