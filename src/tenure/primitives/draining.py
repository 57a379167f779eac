"""Asks all holders of a host to release what they hold: for `tenure drain`, and for the console."""

from collections.abc import Iterable

from tenure.contracts.messages import HolderView
from tenure.core.session import Session

AGAIN = 1.0
"""How often the holders are asked again, in seconds: a revocation request can get lost."""

INTERVAL = 0.1
"""How often the names are inspected meanwhile, in seconds."""

Held = dict[str, list[HolderView]]
"""The names that are held, each with its holders on the host."""


async def drain_names(session: Session, host: str, names: Iterable[str], until: float) -> tuple[int, Held]:
    """Ask the holders of a host to release these names of the namespace, until they have, or a local instant has come.

    Return how many names they held, and what they still hold. Raises StoreError.
    """
    held = await _held_by(session, host, names)
    asked = len(held)
    while held and session.runtime.now() < until:
        for name in held:
            await session.request_revocation(session.prefix + name)
        repeat_at = min(session.runtime.now() + AGAIN, until)
        while held and session.runtime.now() < repeat_at:
            await session.runtime.sleep(max(0.0, min(INTERVAL, repeat_at - session.runtime.now())))
            held = await _held_by(session, host, held)
    return asked, held


async def _held_by(session: Session, host: str, names: Iterable[str]) -> Held:
    held: Held = {}
    for name in names:
        holders = [each for each in (await session.inspect(session.prefix + name)).holders if is_of(each.owner, host)]
        if holders:
            held[name] = holders
    return held


def is_of(owner: str, host: str) -> bool:
    """Return whether an owner is of a host: it is the host, or a process of it, as in `host/4711`."""
    return owner == host or owner.startswith(f"{host}/")
