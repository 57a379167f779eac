"""The links of the Redis store to one server: their contract, and one link for each form of the API."""
