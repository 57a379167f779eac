"""The actions of a console. Each takes the fields of its form, and returns what became of it; `app.py` guards them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tenure.cli.board import Board
from tenure.cli.output import seconds
from tenure.errors import UsageError
from tenure.escaping import shown
from tenure.primitives.draining import drain_names, is_of

Form = Mapping[str, str]

DRAIN_WAITS = 5.0
"""For how many seconds a drain waits for the holders that it has asked."""


@dataclass(slots=True, frozen=True)
class Action:
    """One action: what it is called in the log, what it does, and the page that shows its outcome."""

    title: str
    do: Callable[[Board, Form], Awaitable[str]]
    page: str


LONGEST_TOKEN = 19
"""How many digits a token may have: it fits into 63 bits."""


async def _take(board: Board, form: Form) -> str:
    token = form.get("token", "")
    if not token.isdecimal() or len(token) > LONGEST_TOKEN:
        raise UsageError("the form has no token: load the page of the name again")
    taken = await board.client.revoke(form["n"], force=True, token=int(token))
    if not taken:
        return f"nothing was taken: nobody holds it by token {token} any more"
    return f"taken from {shown(taken[0].owner)} (token {token})"


async def _request_revocation(board: Board, form: Form) -> str:
    asked = await board.client.revoke(form["n"])
    return f"asked {len(asked)} holders" if asked else "nobody holds it"


async def _end_quarantine(board: Board, _form: Form) -> str:
    ended = await board.client.end_quarantine()
    return f"ended {seconds(ended)} early" if ended else "there was no quarantine"


async def _pause(board: Board, form: Form) -> str:
    return _known("paused: no run begins", known=await board.client.job(form["n"]).pause())


async def _resume(board: Board, form: Form) -> str:
    return _known("resumed", known=await board.client.job(form["n"]).resume())


async def _run(board: Board, form: Form) -> str:
    key = form.get("key") or None
    return _known("the next call runs it", known=await board.client.job(form["n"]).repeat(key))


async def _drain(board: Board, form: Form) -> str:
    if not form.get("sure"):
        raise UsageError("it was not confirmed")
    snapshot, host = await board.current(), form["n"]
    if snapshot.error or not snapshot.seen:
        raise UsageError("the store does not answer")
    names = [view.name for view in snapshot.used() if any(is_of(each.owner, host) for each in view.holders)]
    session = board.client.session()
    asked, held = await drain_names(session, host, names, session.runtime.now() + DRAIN_WAITS)
    if not asked:
        return "it held nothing"
    left = f"still holds {len(held)} after {DRAIN_WAITS:g} s: {shown(', '.join(held))}" if held else "released them all"
    return f"asked for {asked} names: it {left}"


def _known(done: str, *, known: bool) -> str:
    return done if known else "no such job, or no such key, has run"


ACTIONS = {
    "take": Action("take", _take, "name"),
    "ask": Action("ask to release", _request_revocation, "name"),
    "drain": Action("drain", _drain, "names"),
    "quarantine": Action("end quarantine", _end_quarantine, "store"),
    "pause": Action("pause", _pause, "jobs"),
    "resume": Action("resume", _resume, "jobs"),
    "run": Action("run again", _run, "jobs"),
}
"""By the last part of its address, to which its form is posted."""
