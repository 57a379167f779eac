"""The ways in which locks are known to fail, each provoked on purpose."""
