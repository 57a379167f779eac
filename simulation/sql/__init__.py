"""A simulated SQL database: the shipped SQL store over tables in memory, with a standby that lags behind."""
