"""The grant table, rule by rule."""
