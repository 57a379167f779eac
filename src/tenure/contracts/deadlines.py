"""The deadline of a lease by its holder's own clock.

A store judges expiry by the store's clock, a holder by the local clock. If the request for a lease of length `ttl` was
sent at `sent`, the lease was granted no earlier, so the store keeps it at least until `sent + ttl` by the store's
clock. The rates of the two clocks may differ by up to DRIFT, and EPSILON covers their granularity. Counting from
anything later than the send (from the reply, from the push) is unsound: each has a model-checked counterexample.
"""

DRIFT = 0.01
EPSILON = 0.002
MICROS = 1_000_000

NEVER = float("inf")
"""A deadline that never comes."""


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds, the unit of everything a store keeps."""
    return round(seconds * MICROS)


def seconds(micros: int) -> float:
    """Convert microseconds of a store to seconds."""
    return micros / MICROS


def valid_until(sent: float, ttl: int) -> float:
    """Return the local deadline of a lease of `ttl` microseconds that was requested at `sent`."""
    return sent + ttl * ((1.0 - DRIFT) / MICROS) - EPSILON
