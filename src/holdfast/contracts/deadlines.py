"""How long a lease may be trusted by its holder's own clock.

A store judges expiry by its clock, a holder by its own. A lease of length `ttl` that was asked for at `sent` was
granted no earlier than `sent`, so the store keeps it until `sent + ttl` or later, as measured by its clock. The
two clocks may run at rates that differ by up to DRIFT, and EPSILON covers their granularity. Counting from
anything later than the send (from the reply, from the push) is unsound: each has a model-checked counterexample.
"""

DRIFT = 0.01
EPSILON = 0.002
MICROS = 1_000_000

NEVER = float("inf")
"""The instant of what has no end."""


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds, the unit of everything a store keeps."""
    return round(seconds * MICROS)


def seconds(micros: int) -> float:
    """Convert microseconds of a store to seconds."""
    return micros / MICROS


def valid_until(sent: float, ttl: int) -> float:
    """Return the local instant until which a lease of `ttl` microseconds, asked for at `sent`, is certainly ours."""
    return sent + ttl * ((1.0 - DRIFT) / MICROS) - EPSILON
