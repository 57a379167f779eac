"""The checks, by what they are about. Each docstring is the guarantee."""
