"""Know when this process is a forked child, so that nothing of the parent's is used in it.

A child inherits copies of leases, sockets and database connections, but none of the threads that look after
them. Whoever owns such a thing registers here, and is told once, in the child, before any user code runs.

Windows has no fork: there nobody is ever told, and a child process begins with nothing of its parent's.
"""

import contextlib
import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something that holds what a forked child must not touch."""

    def after_fork_in_child(self) -> None:
        """Drop what belongs to the parent, without telling anyone outside this process."""


class Quiescable(ForkAware, Protocol):
    """Something that must not be in use at the moment of a fork."""

    def before_fork(self) -> None:
        """Come to rest, and stay so until one of the others is called."""

    def after_fork_in_parent(self) -> None:
        """Go on."""


_watching: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()
_quiescable: "weakref.WeakSet[Quiescable]" = weakref.WeakSet()


def watch(thing: ForkAware) -> None:
    """Have `thing` told when this process turns out to be a forked child."""
    _watching.add(thing)


def watch_quiescable(thing: Quiescable) -> None:
    """Have `thing` told before and after every fork of this process."""
    _watching.add(thing)
    _quiescable.add(thing)


def _before() -> None:
    for thing in list(_quiescable):
        with contextlib.suppress(Exception):
            thing.before_fork()


def _in_parent() -> None:
    for thing in list(_quiescable):
        with contextlib.suppress(Exception):
            thing.after_fork_in_parent()


def _in_child() -> None:
    for thing in list(_watching):
        with contextlib.suppress(Exception):  # a child must come up, whatever state the fork caught us in
            thing.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
