"""The commands that inspect names, and take them from their holders."""

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day

from tenure.cli import output
from tenure.cli.commands import (
    JSON,
    NAME,
    STORE,
    Options,
    argument,
    client_of,
    command,
    find_address,
    flag,
    length,
    whole,
)
from tenure.cli.commands import seconds as of_seconds
from tenure.cli.output import Status, fields_json, plain, seconds, tell
from tenure.client import AsyncClient, Client
from tenure.contracts.handles import PREFIX
from tenure.contracts.limits import EVERYBODY, check_name, describe_quarantine
from tenure.contracts.messages import HolderView, NameView
from tenure.errors import LockTimeout, StoreUnavailable, UsageError
from tenure.escaping import escape
from tenure.explanation import Explanation, Party
from tenure.primitives.draining import drain_names
from tenure.primitives.history import HistoryEntry
from tenure.runtimes.threads import drive

INTERVAL = 0.5
"""How often `wait` inspects the name, in seconds."""

RETRY_FOR = 10.0
"""For how long, in seconds, `wait` repeats a look at a store that does not answer if there is no --timeout."""

ANY_NAME = "tenure"
"""The name that `ls` inspects to learn whether a store without names is quarantined."""

HELD = "{} holds {} (token {}; `tenure release` takes it)"
HELD_DETACHED = "{} holds {} (token {}; detached: `tenure release HANDLE`, or `tenure release` takes it)"

Held = Sequence[tuple[str, HolderView]]

WATCH = flag("--watch", help="Fill the terminal with it, and look again every second, until q or ^C.")


@command(
    "ls",
    "[PATTERN]",
    argument(
        "pattern", nargs="?", metavar="PATTERN", help="List only matching names: * ? [abc] as in a shell. Quote it."
    ),
    WATCH,
    *STORE,
    JSON,
)
def list_(options: Options) -> int:
    """List the names that are held or waited for.

    Into a pipe, a name is one line with tabs between its fields: name, holders, tokens, seconds held, seconds until the
    lease expires, number of waiters, kind (lock, rwlock, semaphore, election, job) as far as the store tells it.

    Exits with 0, also if there is nothing to list; 64: wrong usage; 69: the store failed. With --watch, a store that
    does not answer is shown as such, and ^C exits with 130.
    """
    if options.watch:
        return _watch(options, "names", pattern=options.pattern or "*")
    with client_of(options) as client:
        return list_names(client, options.pattern, as_json=options.as_json)


def _watch(options: Options, page: str, **what: str) -> int:
    """Show a page of `tenure top` alone. Raises UsageError if nothing can draw it."""
    if getattr(options, "as_json", False):
        raise UsageError("--watch and --json contradict each other; give one of them.")
    if not output.has_rich():
        raise UsageError("a screen needs the package rich: pip install 'tenure[cli]'.")
    if importlib.util.find_spec("termios") is None:
        raise UsageError("a screen needs a POSIX system. Repeat `tenure ls` or `tenure show NAME`.")
    from tenure.cli.screen import Screen, show_screen

    def client() -> AsyncClient:
        address = find_address(options)
        address.warn()
        return AsyncClient(address.url, namespace=options.namespace, advice=False)

    return show_screen(client, Screen(page, what.get("name", ""), fixed=bool(what)), **what)


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
        from tenure.cli.screen import print_names

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
        _tell_of_quarantine(longest)


def _tell_of_quarantine(left: float) -> None:
    tell(f"{describe_quarantine(left)}. `tenure quarantine end` ends the quarantine.")


@command("top", "", *STORE)
def top(options: Options) -> int:
    """Show what is wrong, and all names, jobs and elections, in the terminal; it changes nothing.

    Names with many waiters stand first. Keys: arrows, j and k move, enter opens the queue of a name, esc goes back, /
    filters by a part of the name, :names, :jobs and :elections change the page, q ends it. The store is looked at once
    a second at most. A store that does not answer is shown as such, with the last that was seen. Needs the extra cli.

    Exits with 0; 64: wrong usage, or there is no terminal; 128+N: signal N ended it, so ^C 130.
    """
    return _watch(options, "names")


@command("show", "NAME", WATCH, NAME, *STORE, JSON)
def show(options: Options) -> int:
    """Show the holders of a name, and its waiters in their order.

    Into a pipe, each holder and each waiter is one line with tabs between its fields. A holder: `holder`, owner, token,
    seconds held, seconds until the lease expires, and the reason if there is one. A waiter: `waiter` (or `gone`, if it
    will be skipped), owner, seconds waited. A name without a holder: `free`, or `blocked` and for how many seconds. A
    store that may have forgotten grants, and grants nothing for a while, adds a first line: `quarantined` and for how
    many seconds.

    Exits with 0, whether the name is held or not; 64: wrong usage; 69: the store failed. With --watch, a store that
    does not answer is shown as such, and ^C exits with 130.
    """
    if options.watch:
        return _watch(options, "name", name=check_name(options.name))
    with client_of(options) as client:
        view = client.inspect(options.name)
    if options.as_json:
        output.print_json(output.name_json(view))
    elif output.draws_tables():
        from tenure.cli.screen import print_name

        way_out = " `tenure quarantine end` ends the quarantine." if view.quarantined_for else ""
        print_name(_summary(view) + way_out, view)
    else:
        _print_lines(view)
    return Status.DONE


def _print_lines(view: NameView) -> None:
    if view.quarantined_for:
        output.print_line("quarantined", plain(view.quarantined_for))
        _tell_of_quarantine(view.quarantined_for)
    if not view.holders and view.blocked_for:
        output.print_line("blocked", plain(view.blocked_for))
    if is_free(view):
        output.print_line("free")
    for holder in view.holders:
        output.print_line("holder", holder.owner, *_holder_fields(holder), *([holder.reason] if holder.reason else []))
    for waiter in view.waiters:
        output.print_line("waiter" if waiter.alive else "gone", waiter.owner, plain(waiter.waited_for))


@command(
    "why",
    "NAME",
    NAME,
    argument("--owner", metavar="TEXT", help="Explain it for the first waiter of this owner."),
    argument("--weight", type=whole(1), default=1, metavar="N", help="Explain it for a request for so many permits."),
    flag("-x", "--exclusive", help="Explain it for a writer."),
    *STORE,
    JSON,
)
def why(options: Options) -> int:
    """Say why a name is not granted: who holds it, who waits, what keeps it, and what to do.

    The first line is what counts most. What the store cannot tell is not claimed. Of a name that nobody uses, names are
    listed that may have been meant.

    Exits with 0, whether the name is held or not; 64: wrong usage, or nobody of that owner waits; 69: the store failed.
    """
    with client_of(options) as client:
        weight = EVERYBODY if options.exclusive else options.weight
        found = client.why(options.name, weight=weight, owner=options.owner)
    if options.as_json:
        output.print_json(_explanation_json(found))
    else:
        print(*_story(found), sep="\n")
    return Status.DONE


def _story(found: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation. Its sentences are escaped already."""
    yield f"{escape(found.name)}: {found.text}."
    for reason in found.reasons[1:]:
        yield f"also: {reason.text}."
    for holder in found.holders:
        token = "" if holder.token is None else f", token {holder.token}"
        weight = f", {holder.weight} permits" if holder.weight and holder.weight > 1 else ""
        yield f"holder: {holder.text}{token}{weight}"
    for place, waiter in enumerate(found.waiters, 1):
        yield f"waiter {place}: {waiter.text}"
    for sentence in found.untold:
        yield f"note: {sentence}"
    for step in found.next:
        yield f"next: `{step.command}` {step.what}"


def _explanation_json(found: Explanation) -> output.Json:
    return {
        **fields_json(found, "name", "cause", "text"),
        "reasons": [fields_json(each, "cause", "text") for each in found.reasons],
        "holders": [fields_json(each, *Party.__dataclass_fields__) for each in found.holders],
        "waiters": [fields_json(each, *Party.__dataclass_fields__) for each in found.waiters],
        "ahead": found.ahead,
        "untold": list(found.untold),
        "next": [fields_json(each, "command", "what") for each in found.next],
        "near": list(found.near),
    }


# -- waiting for a name --------------------------------------------------------------------------------------


@command(
    "wait",
    "NAME",
    NAME,
    of_seconds("-w", "--timeout", least=0, help="How long to wait. Default: for ever."),
    flag("--change", help="Also end when the holder changes."),
    *STORE,
    JSON,
)
def wait(options: Options) -> int:
    """Wait until a name is free. The command looks twice a second. It joins no queue, so it delays no waiter.

    When it ends, others may be granted the name at once. To do something while nobody else holds the name, use
    `tenure run`.

    Exits with 0 if the name is free, or with --change if its holder has changed; 64: wrong usage; 69: the store failed;
    75: the name was held all the time.
    """
    with client_of(options) as client:
        return wait_for_name(client, options.name, options.timeout, change=options.change, as_json=options.as_json)


def wait_for_name(client: Client, name: str, timeout: float | None, *, change: bool, as_json: bool) -> int:
    """Wait until nobody holds a name, or with `change` until its holders change, and return the status.

    Raises LockTimeout if that does not happen in time.
    """
    give_up_at = math.inf if timeout is None else time.monotonic() + timeout
    view = first = _look(client, name, give_up_at)
    quarantine = Quarantine()
    while not (is_free(view) or quarantine.is_over(view) or (change and _tokens(view) != _tokens(first))):
        if (left := give_up_at - time.monotonic()) <= 0:
            raise LockTimeout(f"after {timeout or 0:g} s, {_summary(view)}")
        time.sleep(min(INTERVAL, left))
        view = _look(client, name, give_up_at)
    if as_json:
        output.print_json(output.name_json(view))
    return Status.DONE


def _look(client: Client, name: str, give_up_at: float) -> NameView:
    """Inspect a name; repeat the request while the store does not answer."""
    give_up_at = time.monotonic() + RETRY_FOR if give_up_at == math.inf else give_up_at
    while True:
        try:
            return client.inspect(name)
        except StoreUnavailable:
            if (left := give_up_at - time.monotonic()) <= 0:
                raise
            time.sleep(min(INTERVAL, left))


def is_free(view: NameView) -> bool:
    """Return whether a newcomer would be granted the name, if nobody waits for it."""
    return not view.holders and not view.blocked_for and not view.quarantined_for


class Quarantine:
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


# -- the history of a name -----------------------------------------------------------------------------------


def instant(text: str) -> datetime:
    """Return the instant that a text names, in UTC: a date with a time, or a time, which is the last one so far."""
    try:
        if "T" in text or " " in text or "-" in text:
            at = datetime.fromisoformat(text)
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        now = datetime.now(UTC)
        at = datetime.combine(now.date(), time_of_day.fromisoformat(text), UTC)
        return at if at <= now else at - timedelta(days=1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no instant: give a time as 10:05 or 10:05:30, or a date with it as 2026-11-27T10:05, in UTC"
        ) from None


@command(
    "log",
    "NAME",
    NAME,
    argument(
        "--at", type=instant, metavar="TIME", help="Show who held the name then: 10:05, or 2026-11-27T10:05 (UTC)."
    ),
    *STORE,
    JSON,
)
def log(options: Options) -> int:
    """Show what happened to a name: its last grants, how each lease ended, and who was not granted it.

    Clients write this with `Client(record=True)`, about a second later. Times are UTC, by the clock of the store. Into
    a pipe, an entry is one line with tabs between its fields: when, `granted` or `not granted`, token, owner, seconds
    waited, seconds held, how it ended. Without an end a lease goes on, or its process died.

    Exits with 0, also if nothing is recorded; 64: wrong usage, or the store keeps no histories; 69: the store failed.
    """
    with client_of(options) as client:
        entries = client.history(options.name)
    if options.at is not None:
        entries = _around(entries, options.at)
    nothing = f"nothing is recorded of {options.name!r}: only clients with `Client(record=True)` leave a history."
    output.print_all(options, entries, _entry_json, entry_fields, _draw, nothing=nothing)
    return Status.DONE


def _draw(entries: Sequence[HistoryEntry]) -> None:
    from tenure.cli.screen import HISTORY, print_rows

    print_rows(HISTORY, map(entry_fields, entries))


def _around(entries: list[HistoryEntry], at: datetime) -> list[HistoryEntry]:
    """Return what was under way at an instant, and the entries that ended last before it and began first after it."""
    present = [each for each in entries if _began(each) <= at and ((end := _end(each)) is None or end >= at)]
    before = [each for each in entries if each not in present and _began(each) < at][-1:]
    after = [each for each in entries if each not in present and _began(each) > at][:1]
    return [each for each in entries if each in present or each in before or each in after]


def _began(entry: HistoryEntry) -> datetime:
    """Return when a lease began, or a wait, which is recorded when it ends."""
    return entry.at if entry.what == "granted" else entry.at - timedelta(seconds=entry.waited)


def _end(entry: HistoryEntry) -> datetime | None:
    return entry.ended if entry.what == "granted" else entry.at


def entry_fields(entry: HistoryEntry) -> tuple[str, ...]:
    """Return the instant, what happened, the token, the owner, how long it waited and held the name, and the end."""
    held = plain(None if entry.ended is None else (entry.ended - entry.at).total_seconds())
    token = str(entry.token) if entry.token else ""
    at = f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return at, entry.what, token, entry.owner, plain(entry.waited), held, entry.how


def _entry_json(entry: HistoryEntry) -> output.Json:
    return {
        "at": entry.at.isoformat(),
        **fields_json(entry, "what", "token", "owner", "waited"),
        "ended": None if entry.ended is None else entry.ended.isoformat(),
        "how": entry.how,
    }


# -- getting a name from its holder --------------------------------------------------------------------------


@command("revoke", "NAME", NAME, *STORE, JSON)
def revoke(options: Options) -> int:
    """Ask the holders of a name to release it. They may go on: no lease is lost.

    A program receives the request by `on_revoke`; `tenure run` and `tenure lock` print a line on standard error,
    and go on. `tenure release NAME --force` takes the name whatever its holders do.

    Exits with 0 if a holder was asked; 1: nobody held the name; 64: wrong usage; 69: the store failed.
    """
    with client_of(options) as client:
        return _report("Asked {} to release {} (token {}).", options, client.revoke(options.name))


@command(
    "release",
    "NAME|HANDLE",
    argument("name", metavar="NAME|HANDLE", help="The name of the lock, or the handle of a lease."),
    flag("--force", help="Take the name from all its holders."),
    argument(
        "--token",
        type=whole(),
        metavar="N",
        help="Take the name only from the holder with this token in `tenure show`.",
    ),
    *STORE,
    JSON,
)
def release(options: Options) -> int:
    """Release a lease by its handle: `tenure release HANDLE`; or take a name from its holders.

    To take a name: `tenure release NAME --force`, or `tenure release NAME --token N`. Look first at the holders, with
    `tenure show NAME`. With --token N the name is taken only from the holder with that token, and not from a holder
    that was granted the name meanwhile. The lease is lost at once, and the next waiter is granted the name. The holder
    is notified, and a command of `tenure run` is ended; but only a check of fencing tokens can refuse what it writes
    until then.

    Exits with 0 if the lease was released, or the name was taken; 1: nobody held it (by that handle or token); 64: of a
    name nothing is done without --force or --token; 69: the store failed.
    """
    name, token = options.name, options.token
    with client_of(options) as client:
        if not options.force and token is None:
            if name.strip().startswith(PREFIX):
                from tenure.cli.hold import release_handle

                return release_handle(client, options)
            if not (holders := client.inspect(name).holders):
                return _report("", options, holders)
            tell(
                f"{name!r} was not released: {' and '.join(f'{each.owner} (token {each.token})' for each in holders)} "
                f"may be writing just now. `--token {holders[0].token}` takes the name from {holders[0].owner} alone, "
                "`--force` from all holders: their leases are lost at once, and only a check of fencing tokens refuses "
                "their late writes."
            )
            return Status.USAGE
        victims = client.revoke(name, force=True, token=token)
    return _report("Took {1} from {0} (token {2}).", options, victims, "" if token is None else f" by token {token}")


def _report(sentence: str, options: Options, holders: Sequence[HolderView], by: str = "") -> int:
    """Print what was done to each holder of a name (with a token), or that nobody held the name."""
    _print_held(options, [(options.name, holder) for holder in holders], lambda _: sentence)
    if not holders:
        tell(f"nobody held {options.name!r}{by}.")
    return Status.DONE if holders else Status.NOBODY


def _print_held(options: Options, held: Held, sentence_of: Callable[[HolderView], str]) -> None:
    """Print the holders of names."""
    if options.as_json:
        output.print_json([{"name": name, **output.holder_json(holder)} for name, holder in held])
    for name, holder in () if options.as_json else held:
        if output.is_terminal():
            print(sentence_of(holder).format(escape(holder.owner), escape(name), holder.token))
        else:
            output.print_line(name, holder.owner, holder.token)


@command(
    "drain",
    "--owner HOST",
    argument("--owner", required=True, metavar="HOST", help="The host, or the owner, as `tenure ls` shows it."),
    length(
        "-w",
        "--timeout",
        default=30.0,
        help="How long to wait for the holders: 30s, 5m, or a number of seconds. Default: 30s.",
    ),
    *STORE,
    JSON,
)
def drain(options: Options) -> int:
    """Ask all holders of a host to release what they hold, before it is switched off: `tenure drain --owner HOST`.

    A holder is of the host if its owner is HOST, or HOST and a slash and more, as the default host/pid. Each gets a
    revocation request, repeated every second; a program hears of it by `on_revoke`, and may go on. The request goes to
    all holders of a name, so of a semaphore also to those of other hosts. When the time is over, those that still hold
    a name are printed: name, owner, token. Stop the programs from taking new work before, for instance by SIGTERM.

    Exits with 0 if the host holds nothing any more; 64: wrong usage; 69: the store failed; 75: it still holds a name.
    """
    host, held_once = options.owner, 0
    with client_of(options) as client:
        session = client.session()
        until = session.runtime.now() + options.length
        while True:
            asked, found = drive(drain_names(session, host, list(client.iter_names()), until))
            held_once += asked
            if found or not asked:  # else look once more: what it has acquired meanwhile
                break
    held = [(name, each) for name, holders in found.items() for each in holders]
    _print_held(options, held, lambda holder: HELD_DETACHED if holder.detached else HELD)
    sys.stdout.flush()
    if held:
        tell(f"{escape(host)} still holds {len(found)} of the names that its holders were asked to release.")
        return Status.NOT_GRANTED
    if not held_once:
        tell(f"no holder has the owner {host!r}, or one that begins with {f'{host}/'!r}.")
    elif output.is_terminal():
        tell(f"{escape(host)} holds nothing any more.")
    return Status.DONE


# -- lines and sentences -------------------------------------------------------------------------------------


def _name_fields(view: NameView) -> Iterator[object]:
    """Yield the fields of a name in a line of `ls`; a field contains the values of all holders."""
    yield view.name
    yield ", ".join(holder.owner for holder in view.holders)
    for values in zip(*map(_holder_fields, view.holders), strict=True) if view.holders else [()] * 3:
        yield ", ".join(values)
    yield len(view.waiters)
    yield output.kind_of(view)


def _holder_fields(holder: HolderView) -> tuple[str, str, str]:
    return str(holder.token), plain(holder.held_for), plain(holder.expires_in)


def _summary(view: NameView) -> str:
    holders = " and ".join(escape(holder.owner) for holder in view.holders)
    state = f"is held by {holders}" if holders else "is free"
    if not holders and view.blocked_for:
        state = f"is blocked for everyone for {seconds(view.blocked_for)} by a lock delay"
    if view.quarantined_for:
        known = f"{state}, as far as the store knows" if holders else "may be held"
        state = f"{known}: {describe_quarantine(view.quarantined_for)}"
    waiting = f"; {len(view.waiters)} waiting" if view.waiters else ""
    return f"{escape(view.name)} {state}{waiting}."
