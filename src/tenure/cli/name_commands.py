"""The commands that inspect names and take them back: `ls`, `show`, `wait`, `revoke`, `release`, `quarantine end`."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from shlex import quote

from tenure.cli import output
from tenure.cli.acquisition import retry_for
from tenure.cli.diagnostics import Status, seconds, tell
from tenure.client import Client
from tenure.contracts.messages import HolderView, NameView
from tenure.errors import LockTimeout, StoreUnavailable
from tenure.escaping import escape

INTERVAL = 0.5
"""How often `wait` inspects the name, in seconds."""

ANY_NAME = "tenure"
"""The name that `ls` inspects to learn whether a store without names is quarantined."""


def list_names(client: Client, pattern: str | None, *, as_json: bool) -> int:
    """Print the names that match a pattern and are held or waited for, each as soon as the store has returned it."""
    views = _views(client, pattern)
    if not as_json:
        views = _noting_quarantine(client, views)
    if as_json:
        output.print_json_list(map(output.name_json, views))
    elif not output.draws_tables():
        for view in views:
            output.print_line(*_name_fields(view))
    else:
        from tenure.cli.tables import print_names

        if not print_names(views):
            print("No name is held." if pattern is None else f"No name that matches {escape(pattern)} is held.")
    return Status.DONE


def _views(client: Client, pattern: str | None) -> Iterator[NameView]:
    for name in client.iter_names(pattern):
        view = client.inspect(name)
        if view.holders or view.waiters:
            yield view


def _noting_quarantine(client: Client, views: Iterator[NameView]) -> Iterator[NameView]:
    """Yield the names, and report at the end whether the store is quarantined, also if it has no names."""
    longest, any_name = 0.0, False
    for view in views:
        longest, any_name = max(longest, view.quarantined_for), True
        yield view
    if not any_name:
        longest = client.inspect(ANY_NAME).quarantined_for
    if longest:
        tell(
            f"the store is quarantined: it may have forgotten leases, and grants nothing for {seconds(longest)}. "
            "`tenure quarantine end` ends the quarantine."
        )


def show_name(client: Client, name: str, *, as_json: bool) -> int:
    """Print who holds a name, and who waits for it, in order."""
    view = client.inspect(name)
    if as_json:
        output.print_json(output.name_json(view))
    elif output.draws_tables():
        from tenure.cli.tables import print_name

        way_out = " `tenure quarantine end` ends the quarantine." if view.quarantined_for else ""
        print_name(_summary(view) + way_out, view)
    else:
        _print_lines(view)
    return Status.DONE


def _print_lines(view: NameView) -> None:
    if view.quarantined_for:
        output.print_line("quarantined", output.plain(view.quarantined_for))
    if not view.holders and view.blocked_for:
        output.print_line("blocked", output.plain(view.blocked_for))
    if _is_free(view):
        output.print_line("free")
    for holder in view.holders:
        output.print_line("holder", holder.owner, *_holder_fields(holder))
    for waiter in view.waiters:
        output.print_line("waiter" if waiter.alive else "gone", waiter.owner, output.plain(waiter.waited_for))


# -- waiting for a name --------------------------------------------------------------------------------------


def wait_for_name(client: Client, name: str, timeout: float | None, *, change: bool, as_json: bool) -> int:
    """Wait until nobody holds a name, or with `change` until its holders change, and return the status.

    Raises LockTimeout if that does not happen in time.
    """
    give_up_at = math.inf if timeout is None else time.monotonic() + timeout
    view = first = _look(client, name, give_up_at)
    quarantine = _Quarantine()
    while not (_is_free(view) or quarantine.is_over(view) or (change and _tokens(view) != _tokens(first))):
        if (left := give_up_at - time.monotonic()) <= 0:
            raise LockTimeout(f"{_summary(view).rstrip('.')} after {timeout or 0:g} s.")
        time.sleep(min(INTERVAL, left))
        view = _look(client, name, give_up_at)
    if as_json:
        output.print_json(output.name_json(view))
    return Status.DONE


def _look(client: Client, name: str, give_up_at: float) -> NameView:
    """Inspect a name; repeat the request while the store does not answer."""
    give_up_at = time.monotonic() + retry_for(None) if give_up_at == math.inf else give_up_at
    while True:
        try:
            return client.inspect(name)
        except StoreUnavailable:
            if (left := give_up_at - time.monotonic()) <= 0:
                raise
            time.sleep(min(INTERVAL, left))


def _is_free(view: NameView) -> bool:
    return not view.holders and not view.blocked_for and not view.quarantined_for


class _Quarantine:
    """The end of a quarantine, as `wait` sees it.

    A store begins its quarantine with the first acquire request, not when a name is inspected. So `wait` counts the
    time itself: after it every forgotten lease has expired.
    """

    def __init__(self) -> None:
        self._ends_at = math.inf

    def is_over(self, view: NameView) -> bool:
        """Tell whether nobody holds the name, once the quarantine that was seen first has gone by."""
        now = time.monotonic()
        if view.holders or not view.quarantined_for:
            self._ends_at = math.inf
            return False
        self._ends_at = min(self._ends_at, now + view.quarantined_for)
        return now >= self._ends_at and not view.blocked_for


def _tokens(view: NameView) -> set[int]:
    return {holder.token for holder in view.holders}


# -- getting a name from its holder --------------------------------------------------------------------------


def revoke_name(client: Client, name: str, *, as_json: bool) -> int:
    """Ask the holders of a name to release it, and report which holders were asked."""
    return _report("Asked {} to release {} (token {}).", name, client.revoke(name), as_json=as_json)


def release_name(client: Client, name: str, token: int | None, *, force: bool, as_json: bool) -> int:
    """Take a name from all its holders, or from the holder with a token, and report from which."""
    if not force and token is None:
        tell(
            f"{name!r} was not released: its holder may be writing just now. See its holder with "
            f"`tenure show {quote(name)}`. To take the name from it, use --token with its token, or --force for all "
            "holders: their leases are lost at once, and only a check of fencing tokens refuses their late writes."
        )
        return Status.USAGE
    victims = client.revoke(name, force=True, token=token)
    by = "" if token is None else f" by token {token}"
    return _report("Took {1} from {0} (token {2}).", name, victims, by, as_json=as_json)


def end_quarantine(client: Client, *, sure: bool, as_json: bool) -> int:
    """End the quarantine of a store, if the user is sure, and report what was ended."""
    if not sure and not _is_sure():
        tell("the quarantine was not ended, for it was not confirmed. --yes ends it without a question.")
        return Status.USAGE
    ended = client.end_quarantine()
    if as_json:
        output.print_json({"ended": ended})
    elif ended:
        tell(f"the quarantine was ended {seconds(ended)} early: the store grants locks again.")
    else:
        tell("the store is not quarantined.")
    return Status.DONE if ended else Status.NOBODY


def _is_sure() -> bool:
    if not sys.stdin.isatty():
        return False
    print(
        "The store may have forgotten leases that are held. If a holder from before its restart or failover is still\n"
        "at work, the next holder is at work beside it; only fencing tokens keep them apart.",
        file=sys.stderr,
    )
    print("End the quarantine? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _report(sentence: str, name: str, holders: Sequence[HolderView], by: str = "", *, as_json: bool) -> int:
    """Print what was done to each holder of a name (with a token), or that nobody held the name."""
    if as_json:
        output.print_json([{"name": name, **output.holder_json(holder)} for holder in holders])
    for holder in () if as_json else holders:
        if output.is_terminal():
            print(sentence.format(escape(holder.owner), escape(name), holder.token))
        else:
            output.print_line(name, holder.owner, holder.token)
    if not holders:
        tell(f"nobody held {name!r}{by}.")
    return Status.DONE if holders else Status.NOBODY


# -- lines and sentences -------------------------------------------------------------------------------------


def _name_fields(view: NameView) -> Iterator[object]:
    """Yield the fields of a name in a line of `ls`; a field contains the values of all holders."""
    yield view.name
    yield output.join(holder.owner for holder in view.holders)
    for values in zip(*map(_holder_fields, view.holders), strict=True) if view.holders else [()] * 3:
        yield output.join(values)
    yield len(view.waiters)


def _holder_fields(holder: HolderView) -> tuple[str, str, str]:
    return str(holder.token), output.plain(holder.held_for), output.plain(holder.expires_in)


def _summary(view: NameView) -> str:
    holders = " and ".join(escape(holder.owner) for holder in view.holders)
    state = f"is held by {holders}" if holders else "is free"
    if not holders and view.blocked_for:
        state = f"is blocked for everyone for {seconds(view.blocked_for)} by a lock delay"
    if view.quarantined_for:
        known = f"{state}, as far as the store knows" if holders else "may be held"
        state = (
            f"{known}: the store is quarantined, may have forgotten leases, and grants nothing for "
            f"{seconds(view.quarantined_for)}"
        )
    waiting = f"; {len(view.waiters)} waiting" if view.waiters else ""
    return f"{escape(view.name)} {state}{waiting}."
