"""What the stores in SQL databases share: the grant table in rows, and the steps on it."""
