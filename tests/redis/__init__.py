"""Redis and Valkey as they are: real servers, disturbed on purpose."""
