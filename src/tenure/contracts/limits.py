"""The limits of names, durations and numbers. Every refusal says what is allowed."""

from typing import TYPE_CHECKING, Final

from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.contracts.store import Capabilities

NAME_BYTES = 512
LONGEST_REPLY = 2**25
"""How many bytes a reply of a server may have: far more than any reply to a request of a client has."""

LONGEST = 366 * 86_400.0
"""The longest duration, in seconds."""

MAX_TTL = 30.0
"""The longest ttl, in seconds, that a store grants which may forget grants, unless its URL says another: `max_ttl`. It
is the least length of a quarantine, too: docs/adr/0004-quarantine.md says why."""

EVERYBODY = 2**20
"""The capacity of a reader/writer lock: the most readers at a time, and the weight of a writer. No semaphore has as
many permits, so that a name is never used as both."""

MOST_TOKENS = 2**53 - 1
"""The largest fencing token."""

SKIP: Final = "skip"
WAIT: Final = "wait"
RAISE: Final = "raise"
BUSY = (SKIP, WAIT, RAISE)
"""What is done while another holds a lock or runs a job: do without; wait; raise LockTimeout."""


def describe_quarantine(left: float) -> str:
    """Describe why a store grants nothing, for how many more seconds, and how long that lasts in all."""
    return (
        "the store restarted, failed over or is new, and may have forgotten leases. It is quarantined: it grants "
        f"nothing for another {left:.1f} s. A quarantine lasts for max_ttl or longer, because a forgotten lease may "
        "last as long"
    )


def check_name(name: object, what: str = "a lock name") -> str:
    """Return `name` if it is a non-empty str of at most 512 bytes of UTF-8; else raise UsageError."""
    if not isinstance(name, str) or not name:
        message = f"{what} must be a non-empty str, not {name!r}"
        raise UsageError(message)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        message = f"{what} must be encodable as UTF-8; {name!r} contains a lone surrogate"
        raise UsageError(message) from None
    if size > NAME_BYTES:
        message = f"{what} may have up to {NAME_BYTES} bytes of UTF-8; this one has {size} ({name[:20]!r}...)"
        raise UsageError(message)
    return name


def check_duration(value: object, what: str, least: float = 0.0) -> float:
    """Return `value` as seconds if it is a number from `least` to 366 days; else raise UsageError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= LONGEST:  # NaN is not
        return float(value)
    raise UsageError(f"{what} must be a number of seconds from {least:g} to {LONGEST:.0f}, not {value!r}")


def check_ttl(value: object, able: "Capabilities") -> float:
    """Return `value` if it is a ttl, in seconds, that a store with these capabilities grants; else raise UsageError."""
    ttl = check_duration(value, "ttl", able.min_ttl)
    if ttl > able.max_ttl:
        raise UsageError(
            f"ttl={ttl:g} is longer than this store's max_ttl of {able.max_ttl:g} s, the length of a "
            "quarantine. Use a shorter ttl (leases are renewed in the background), or a longer max_ttl: in a URL write "
            f"?max_ttl={ttl:g}."
        )
    return ttl


def check_template(template: str) -> str:
    """Return `template` if events can have it, or it is empty; else raise UsageError."""
    return check_name(template, "a template") if template else ""


def check_timeout(value: object) -> float | None:
    """Return `value` if it is None (wait for ever) or a duration from 0 (ask once); else raise UsageError."""
    return None if value is None else check_duration(value, "timeout (or None, to wait for ever)")


def check_count(value: object, what: str) -> int:
    """Return `value` if it is a whole number from 0 on; else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{what} must be a whole number from 0 on, not {value!r}")
    return value


def check_number(value: object, what: str, most: int) -> int:
    """Return `value` if it is a whole number from 1 to `most`; else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{what} must be a whole number from 1 to {most}, not {value!r}")
    return value
