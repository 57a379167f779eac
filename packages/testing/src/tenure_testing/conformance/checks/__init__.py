"""The checks, a module for each subject. The docstring of a check is the guarantee."""
