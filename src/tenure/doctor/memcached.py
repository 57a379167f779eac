"""The rules for a memcached server: what is set there, seen from the locks."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact
from tenure.doctor.common import NEARLY_ALL, dotted, of_clock, of_connections, version_of

OLDEST = (1, 6, 10)

CLOCK_TOLERANCE = 2.0
"""memcached tells its clock in whole seconds, of a timer that may be late."""


@dataclass(slots=True)
class MemcachedFacts(Facts):
    """What is known of a memcached server."""

    silent: str = ""
    """Why it does not answer; empty if it does."""

    version: str | None = fact("the version")
    cas: bool | None = fact("whether it gives CAS values")
    evicts: bool | None = fact("whether it evicts items")
    evicted: int | None = fact("how many items it has evicted")
    flushed: int | None = fact("how often somebody sent flush_all")
    used: int | None = fact("how much memory its items use")
    most: int | None = fact("the bound of its memory")
    clients: int | None = fact("how many connections are in use")
    most_clients: int | None = fact("how many connections it allows")
    crawls: bool | None = fact("whether it lists its items")
    ahead: float | None = fact("its clock")


def silent(facts: MemcachedFacts) -> Finding | None:
    """Find a server that does not answer."""
    if not facts.silent:
        return None
    return Finding(
        "memcached-silent",
        Severity.ERROR,
        facts.place,
        f"It does not answer ({facts.silent}).",
        "The locks whose names it has cannot be taken: names are not moved to another server.",
        "start the server, or check the address in the URL",
    )


def version(facts: MemcachedFacts) -> Finding | None:
    """Find a server that is too old."""
    if facts.version is None or not (found := version_of(facts.version)) or found >= OLDEST:
        return None
    return Finding(
        "memcached-version",
        Severity.ERROR,
        facts.place,
        f"Its version is {facts.version}.",
        f"Tenure needs the meta commands of memcached {dotted(OLDEST)} or later.",
        "an upgrade to a version that is still maintained",
    )


def cas(facts: MemcachedFacts) -> Finding | None:
    """Find a server without CAS values."""
    if facts.cas is not False:
        return None
    return Finding(
        "memcached-cas",
        Severity.ERROR,
        facts.place,
        "It was started with -C, so it gives no CAS values.",
        "Without them nobody can tell whether a lock has changed hands. Tenure refuses such a server.",
        "start memcached without -C",
    )


def evictions(facts: MemcachedFacts) -> Finding | None:
    """Find a server that has evicted items."""
    if not facts.evicted or facts.most is None:
        return None
    return Finding(
        "memcached-evictions",
        Severity.ERROR,
        facts.place,
        f"It has evicted {facts.evicted} items since it started.",
        "An evicted lock is free for others while it is held.",
        f"start memcached with -m {max(64, 2 * facts.most // 2**20)}, or give the locks a server of their own",
    )


def no_evictions(facts: MemcachedFacts) -> Finding | None:
    """Find a server that must not evict."""
    if facts.evicts is not False:
        return None
    return Finding(
        "memcached-no-evictions",
        Severity.WARNING,
        facts.place,
        "It was started with -M, so it evicts nothing.",
        "When its memory is full it deletes an item that it has no memory to replace: a renewal may lose its lease.",
        "start memcached without -M, and with enough memory (-m)",
    )


def memory(facts: MemcachedFacts) -> Finding | None:
    """Find a memory that is nearly full."""
    if facts.used is None or not facts.most or facts.used < NEARLY_ALL * facts.most:
        return None
    return Finding(
        "memcached-memory",
        Severity.WARNING,
        facts.place,
        f"Its items use {facts.used} of {facts.most} bytes.",
        "When its memory is full it evicts locks that are held.",
        f"start memcached with -m {max(64, 2 * facts.most // 2**20)}",
    )


def flushed(facts: MemcachedFacts) -> Finding | None:
    """Find that somebody has removed all items."""
    if not facts.flushed:
        return None
    return Finding(
        "memcached-flush",
        Severity.WARNING,
        facts.place,
        f"Somebody has sent flush_all, {facts.flushed} times since it started.",
        "Each time all locks are forgotten, and granted again while they are held.",
        "give the locks a server of their own; -F refuses flush_all",
    )


def crawler(facts: MemcachedFacts) -> Finding | None:
    """Find a server that does not list its items."""
    if facts.crawls is not False:
        return None
    return Finding(
        "memcached-crawler",
        Severity.NOTE,
        facts.place,
        "It was started with -o no_lru_crawler.",
        "names() and `tenure ls` do not work. Everything else does.",
        "start memcached without -o no_lru_crawler",
    )


def connections(facts: MemcachedFacts) -> Finding | None:
    """Find a server that has hardly any connection left."""
    change = f"start memcached with -c {2 * (facts.most_clients or 0)}"
    return of_connections("memcached", facts.place, facts.clients, facts.most_clients, change)


def clock(facts: MemcachedFacts) -> Finding | None:
    """Find a clock that differs from ours."""
    return of_clock(
        "memcached",
        facts.place,
        facts.ahead,
        "the clocks of the clients keep the tokens in order once an item is forgotten.",
        CLOCK_TOLERANCE,
    )


RULES: tuple[Rule[MemcachedFacts], ...] = (
    silent,
    version,
    cas,
    evictions,
    no_evictions,
    memory,
    flushed,
    connections,
    clock,
    crawler,
)
