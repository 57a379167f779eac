"""Know when this process is a forked child, so that nothing of the parent's is used in it.

A child inherits copies of leases, sockets and database connections, but none of the threads that look after
them. Whoever owns such a thing registers here, and is told once, in the child, before any user code runs.
"""

import contextlib
import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something that holds what a forked child must not touch."""

    def after_fork_in_child(self) -> None:
        """Drop what belongs to the parent, without telling anyone outside this process."""


_generation = 0
_watching: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def generation() -> int:
    """Count the forks between this process and the one that imported Holdfast."""
    return _generation


def watch(thing: ForkAware) -> None:
    """Have `thing` told when this process turns out to be a forked child."""
    _watching.add(thing)


def _in_child() -> None:
    global _generation  # noqa: PLW0603 - the one fact about the process that this module keeps
    _generation += 1
    for thing in list(_watching):
        with contextlib.suppress(Exception):  # a child must come up, whatever state the fork caught us in
            thing.after_fork_in_child()


os.register_at_fork(after_in_child=_in_child)
