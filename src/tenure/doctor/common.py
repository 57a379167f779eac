"""What the rules of several stores have in common."""

import re

from tenure.contracts.findings import Finding, Severity

CLOCK_TOLERANCE = 1.0
"""By how many seconds the clock of a server may differ from ours."""

NEARLY_ALL = 0.9
"""The part of a bound from which on it is nearly reached."""

Version = tuple[int, ...]

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def version_of(text: str) -> Version:
    """Return the first version in a text, as (3, 5, 13); () if there is none."""
    found = _VERSION.search(text)
    return tuple(int(each or 0) for each in found.groups()) if found else ()


def dotted(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def of_clock(
    kind: str, place: str, ahead: float | None, matters: str, tolerance: float = CLOCK_TOLERANCE
) -> Finding | None:
    """Find a clock that differs from ours by more than the tolerance, in seconds."""
    if ahead is None or abs(ahead) <= tolerance:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    return Finding(
        f"{kind}-clock",
        Severity.WARNING,
        place,
        f"Its clock is {abs(ahead):.1f} s {side} the clock of this machine.",
        f"One of them is wrong, and somebody may set it: {matters}",
        "timedatectl set-ntp true",
    )


def of_quarantine(kind: str, place: str, left: float | None, why: str) -> Finding | None:
    """Find a quarantine that is under way, with so many seconds left."""
    if not left or left <= 0:
        return None
    return Finding(
        f"{kind}-quarantine",
        Severity.WARNING,
        place,
        f"It is in quarantine, and grants nothing for another {left:.1f} s: {why}.",
        "It may have forgotten leases, so it waits until they have run out.",
        "tenure quarantine end, if no holder from before can still be at work",
    )


def of_max_ttl(kind: str, place: str, max_ttl: float, ttl: float, longest: float | None) -> Finding | None:
    """Find a ttl that is longer than max_ttl: that of the program, or one that other clients use."""
    used = max(ttl, longest or 0.0)
    if used <= max_ttl:
        return None
    whose = f"a ttl of {ttl:g} s is asked for" if ttl == used else f"other clients use {used:g} s"
    return Finding(
        f"{kind}-max-ttl",
        Severity.WARNING,
        place,
        f"max_ttl is {max_ttl:g} s, and {whose}.",
        "A lock with a longer ttl than max_ttl is refused, and a quarantine that this client begins may end before "
        "such a lease does.",
        f"?max_ttl={used:g} in the URL of every client",
    )


def of_connections(kind: str, place: str, used: int | None, most: int | None, change: str) -> Finding | None:
    """Find a server that has hardly any connection left."""
    if used is None or not most or used < NEARLY_ALL * most:
        return None
    return Finding(
        f"{kind}-connections",
        Severity.WARNING,
        place,
        f"{used} of its {most} connections are in use.",
        "A client that gets no connection can neither acquire nor renew, and loses its leases.",
        change,
    )


def of_members(kind: str, place: str, members: int | None, change: str) -> Finding | None:
    """Find an ensemble of one member, or of an even number."""
    if members is None or (members % 2 and members > 1):
        return None
    if members <= 1:
        what, why = "The ensemble has one member.", "If it dies, no lock can be taken or renewed until it is back."
    else:
        what = f"The ensemble has {members} members."
        why = f"It may lose as many as one of {members - 1}, and has one more that can fail."
    return Finding(f"{kind}-members", Severity.WARNING, place, what, why, change)


def of_session(kind: str, place: str, session: float | None, ttl: float) -> Finding | None:
    """Find a session that outlives the ttl."""
    if session is None or session <= ttl:
        return None
    return Finding(
        f"{kind}-session",
        Severity.WARNING,
        place,
        f"The session of a client lasts for {session:g} s after its process has died, and the ttl is {ttl:g} s.",
        "The locks of a dead process are free when its session ends, not after their ttl.",
        f"?session_timeout={max(1, int(ttl))} in the URL",
    )
