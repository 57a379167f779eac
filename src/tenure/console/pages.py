"""The pages: functions of a snapshot, of what a visitor may do, and of what was asked for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tenure.cli.board import (
    LIMIT,
    MOST_NAMES,
    STOCK,
    Board,
    Snapshot,
    Trouble,
    is_silent,
    longest_wait,
    seen,
    troubles,
    wrong_with,
)
from tenure.cli.output import BY_KEY, job_row, seconds
from tenure.console.audit import AuditLine
from tenure.console.html import Html, field, joined, link, table, tag, theirs
from tenure.console.timeline import SPANS, timeline
from tenure.contracts.findings import Severity
from tenure.contracts.limits import describe_quarantine
from tenure.contracts.messages import HolderView, NameView
from tenure.core.explaining import explain
from tenure.escaping import shown
from tenure.primitives.jobs import JobView

ROWS = 100
"""How many names, holders or waiters a page shows."""


@dataclass(slots=True)
class Visit:
    """What a page is made of."""

    root: str
    board: Board
    snapshot: Snapshot
    act: bool
    csrf: str
    """The token of the forms."""
    long_wait: float
    """For how many seconds a waiter waits before that is trouble."""
    audit: Sequence[AuditLine]
    """What was done here lately, the latest first."""
    query: dict[str, str]

    def to(self, path: str, text: object, **query: object) -> Html:
        """Return a link to another page."""
        return tag("a", text, href=link(self.root, path, **query))

    def to_name(self, name: str) -> Html:
        """Return a link to the page of a name."""
        return self.to("name", theirs(name), n=name)


def age_of(snapshot: Snapshot) -> Html:
    """Return how old a snapshot is, and why there is no newer one."""
    return tag("span", seen(snapshot), class_="bad" if snapshot.error else None)


# -- trouble -------------------------------------------------------------------------------------------------


def trouble(visit: Visit) -> Html:
    """Return what is wrong now."""
    found = [_trouble(visit, each) for each in troubles(visit.snapshot, visit.long_wait)]
    return joined(
        [
            *(tag("p", each, class_="trouble") for each in found),
            "" if found or not visit.snapshot.seen else tag("p", "Nothing is wrong, as far as can be seen."),
            _counts(visit),
            _audit(visit),
        ]
    )


def _trouble(visit: Visit, found: Trouble) -> Html:
    if found.page == "store":
        return joined(["The store: ", found.text, " ", visit.to("store", "See the store.")])
    if not found.page:
        return Html(tag("span", found.text))
    title = visit.to_name(found.name) if found.page == "name" else visit.to("jobs", theirs(found.name))
    return joined([title, ": ", tag("bdi", found.text)])


def _counts(visit: Visit) -> Html:
    used = visit.snapshot.used()
    waiting = sum(len(view.waiters) for view in used)
    more = "more than " if visit.snapshot.more else "" if visit.snapshot.seen else "at least "
    return tag(
        "p",
        visit.to("names", f"{more}{len(used)} names in use"),
        f", {waiting} waiters, ",
        visit.to("jobs", f"{len(visit.snapshot.jobs)} jobs"),
        ".",
    )


# -- names ---------------------------------------------------------------------------------------------------


def names(visit: Visit) -> Html:
    """Return a page of the names in use, of those that begin with a prefix."""
    prefix = visit.query.get("prefix", "")
    views = [view for view in visit.snapshot.used() if view.name.startswith(prefix)]
    rows, pages = _page(visit, views, "names", prefix=prefix)
    search = _search(visit, "names", field("Names that begin with", "prefix", value=prefix, type="search"))
    nothing = f"No name that begins with {prefix} is in use." if prefix else "No name is in use."
    cut = f"Only the first {MOST_NAMES:,} names that the store lists are shown." if visit.snapshot.more else ""
    drain = _drain_form(visit) if visit.act else ""
    found = _names_table(visit, rows, nothing)
    return joined([search, tag("p", cut, class_="bad") if cut else "", found, pages, drain, _audit(visit, "names")])


def _search(visit: Visit, path: str, *inputs: Html) -> Html:
    return tag("form", *inputs, tag("button", "Show"), action=link(visit.root, path), role="search")


def _names_table(visit: Visit, views: Iterable[NameView], nothing: str) -> Html:
    rows = (
        (
            visit.to_name(view.name),
            _owners(view.holders),
            seconds(max((each.held_for for each in view.holders), default=0.0)) if view.holders else "",
            _ends(min(view.holders, key=lambda each: each.expires_in)) if view.holders else "",
            len(view.waiters),
            seconds(longest_wait(view)) if view.waiters else "",
        )
        for view in views
    )
    return table(("Name", "Holder", "Held for", "Ends in", "Waiters", "Longest wait"), rows, nothing)


def _owners(holders: Sequence[HolderView]) -> Html:
    if not holders:
        return tag("span", "nobody", class_="dim")
    rest = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return tag("span", theirs(holders[0].owner), rest)


def _ends(holder: HolderView) -> Html:
    """Return when a lease ends, as a number and as a bar."""
    bar = tag("progress", value=f"{holder.expires_in:.1f}", max=f"{holder.ttl:.1f}", aria_hidden="true")
    return tag("span", seconds(holder.expires_in), " ", bar if holder.ttl > 0 else "")


def _page(visit: Visit, found: Sequence[NameView], path: str, **query: str) -> tuple[Sequence[NameView], Html]:
    """Return the part of a list that the page shows, and links to the other parts."""
    last = max(1, -(-len(found) // ROWS))
    asked = visit.query.get("page", "1")
    at = min(last, max(1, int(asked))) if asked.isdecimal() and len(asked) < len(str(MOST_NAMES)) else 1
    parts = [f"Page {at} of {last}, {len(found)} in all."]
    parts += [visit.to(path, "Previous", page=at - 1, **query)] if at > 1 else []
    parts += [visit.to(path, "Next", page=at + 1, **query)] if at < last else []
    return found[(at - 1) * ROWS : at * ROWS], tag("p", *parts, class_="pages") if last > 1 else Html()


def name(visit: Visit) -> Html:
    """Return all that is known of one name."""
    asked = visit.query.get("n", "")
    view = visit.snapshot.views.get(asked)
    if view is None:
        return tag("p", "This name was not looked at yet: the store has not answered.")
    holders = (
        (theirs(each.owner), each.token, seconds(each.held_for), _ends(each), _note(view, each))
        for each in view.holders[:ROWS]
    )
    waiters = (
        (place, theirs(each.owner), seconds(each.waited_for), "" if each.alive else "gone; will be skipped")
        for place, each in enumerate(view.waiters[:ROWS], 1)
    )
    return joined(
        [
            *(tag("p", theirs(asked), f": {each.text}.") for each in explain(view, visit.board.capabilities).reasons),
            tag("h2", "Holders"),
            table(("Holder", "Token", "Held for", "Ends in", "Note"), holders, "Nobody holds it."),
            _cut(view.holders),
            _name_actions(visit, view) if visit.act else "",
            tag("h2", "Waiters"),
            table(("Place", "Waiter", "Waited for", "Note"), waiters, "Nobody waits for it."),
            _cut(view.waiters),
            tag("h2", "History"),
            *_history(visit, view),
            _audit(visit, "name", asked),
        ]
    )


def _history(visit: Visit, view: NameView) -> Iterator[Html]:
    """Yield what happened to a name, as far as it is recorded."""
    if not visit.board.capabilities.cells:
        yield tag("p", "This store keeps no histories.", class_="none")
        return
    found = visit.snapshot.histories.get(view.name, "it comes with the next look")
    if isinstance(found, str):
        yield tag("p", f"The history was not read: {found}.", class_="none")
        return
    entries, now = found
    if not entries:
        yield tag(
            "p",
            "No history is recorded. To record it, make the clients with ",
            tag("code", "record=True"),
            ".",
            class_="none",
        )
        return
    asked = visit.query.get("span", "")
    spans = {"": "the latest"} | {str(span): text for span, text in SPANS.items()}
    links = (
        tag("b", text) if span == asked else visit.to("name", text, n=view.name, span=span)
        for span, text in spans.items()
    )
    yield tag("p", "Show:", *links, class_="pages")
    yield timeline(entries, now, asked, {each.token for each in view.holders})


def _note(view: NameView, holder: HolderView) -> Html | str:
    notes = [f"holds {holder.weight} of {view.capacity}"] if view.capacity > 1 else []
    notes += [f"publishes {shown(holder.value)}"] if holder.value else []
    notes += ["has missed a renewal"] if is_silent(holder) else []
    return tag("bdi", "; ".join(notes)) if notes else ""


def _cut(found: Sequence[object]) -> Html:
    return tag("p", f"... and {len(found) - ROWS} more.", class_="dim") if len(found) > ROWS else Html()


# -- jobs, elections, quantities, the store ------------------------------------------------------------------


def jobs(visit: Visit) -> Html:
    """Return the jobs that run once."""
    if not visit.board.capabilities.cells:
        return tag("p", "This store keeps no jobs.")
    headings = ["Job", "Window", "State", "Last run (UTC)", "Took", "By", "Next (UTC)", "Error"]
    rows: list[list[object]] = []
    for view in visit.snapshot.jobs:
        _, every, state, at, took, by, following, error, _ = job_row(view)
        rows.append(
            [
                theirs(view.name),
                every,
                tag("span", state, class_="bad" if wrong_with(view) else None),
                at,
                took and f"{took} s",
                theirs(by) if by else "",
                following,
                theirs(error) if error else "",
                *([_job_actions(visit, view)] if visit.act else []),
            ]
        )
    body = table([*headings, *(["Actions"] if visit.act else [])], rows, "No job has run.")
    return joined([body, _audit(visit, "jobs")])


def elections(visit: Visit) -> Html:
    """Return the elections: the names whose holders publish values."""
    rows = (
        (
            visit.to_name(view.name),
            theirs(first.owner),
            theirs(first.value),
            first.token,
            seconds(first.held_for),
            len(view.waiters),
        )
        for view in visit.snapshot.used()
        for first in view.holders[:1]
        if first.value
    )
    headings = ("Election", "Leader", "Publishes", "Token", "Leads for", "Candidates")
    return joined(
        [
            tag("p", "A leader that publishes no value looks like the holder of a lock.", class_="dim"),
            table(headings, rows, "No leader publishes a value."),
        ]
    )


def quantities(visit: Visit) -> Html:
    """Return the limits and stocks that the console knows by name."""
    if not visit.board.capabilities.cells:
        return tag("p", "This store keeps no limits and stocks.")
    kinds = (tag("option", each, value=each) for each in (LIMIT, STOCK))
    kind = tag("label", "Kind", tag("select", *kinds, name="kind"))
    search = _search(visit, "quantities", kind, field("Name", "n", required=True))
    rows = ((kind, theirs(each), state) for (kind, each), state in visit.snapshot.quantities.items())
    nothing = "A store has no list of limits and stocks: look one up by its name."
    return joined([search, table(("Kind", "Name", "State"), rows, nothing)])


def store(visit: Visit) -> Html:
    """Return what is known of the store."""
    board, snapshot = visit.board, visit.snapshot
    facts = {
        "Store": board.title,
        "Namespace": board.client.namespace or "none",
        "State": age_of(snapshot),
        "The look took": seconds(snapshot.took),
        "Names in use": len(snapshot.used()),
        "Quarantine": describe_quarantine(snapshot.quarantined_for) if snapshot.quarantined_for else "none",
        "Fencing tokens": "yes" if board.capabilities.tokens else "no",
        "Jobs, counters, limits, stocks": "yes" if board.capabilities.cells else "no",
    }
    rows = (part for key, value in facts.items() for part in (tag("dt", key), tag("dd", value)))
    end = ""
    if visit.act and snapshot.quarantined_for:
        warning = (
            "If a holder from before is still at work, the next holder works beside it, and only fencing tokens keep "
            "them apart."
        )
        end = _form(visit, "quarantine", "End the quarantine", warning)
    return joined([tag("dl", *rows), end, tag("h2", "Settings"), *_findings(board), _audit(visit, "store")])


def _findings(board: Board) -> Iterator[Html]:
    """Yield what is wrongly set at the store, as `tenure doctor` tells it."""
    if board.unexamined:
        yield tag("p", f"The settings of the store were not examined: {board.unexamined}.", class_="bad")
    report = board.report
    if report is None:
        yield tag("p", "" if board.unexamined else "The settings of the store are being examined.")
        return
    for each in report.findings:
        yield tag(
            "div",
            tag("h3", f"{each.severity}: {each.id} at {each.place}"),
            tag("p", each.what, " ", each.why),
            tag("p", "To change it: ", tag("code", each.change)),
            class_="trouble" if each.severity is not Severity.NOTE else "note",
        )
    if not report.findings:
        yield tag("p", "Nothing is wrongly set, as far as was seen.")
    if report.unseen:
        rows = ((each.what, each.place, each.why) for each in report.unseen)
        yield table(("Not looked at", "Where", "Why"), rows, "")


# -- actions -------------------------------------------------------------------------------------------------


def _name_actions(visit: Visit, view: NameView) -> Html:
    warning = (
        "Its lease is lost at once, and the next waiter is granted the name. Only a check of fencing tokens refuses "
        "what it still writes."
    )
    forms = [
        _form(visit, "take", f"Take the name from {shown(holder.owner)}", warning, n=view.name, token=holder.token)
        for holder in view.holders[:ROWS]
    ]
    advice = "The holders hear of it, and may go on."
    return joined(
        [_form(visit, "ask", "Ask the holders to release the name", advice, n=view.name) if forms else "", *forms]
    )


def _drain_form(visit: Visit) -> Html:
    hosts = sorted({holder.owner.partition("/")[0] for view in visit.snapshot.used() for holder in view.holders})
    return _form(
        visit,
        "drain",
        "Drain a host",
        "All holders of the host are asked to release what they hold; they hear of it, and may go on. So are the other "
        "holders of its semaphores. Keep its programs from acquiring again before.",
        field("Host or owner", "n", required=True, list="hosts", autocomplete="off"),
        tag("datalist", *(tag("option", value=each) for each in hosts[:ROWS]), id="hosts"),
        field("Ask them all", "sure", type="checkbox", required=True),
    )


def _job_actions(visit: Visit, view: JobView) -> Html:
    change = ("resume", "Resume") if view.paused else ("pause", "Pause")
    keyed = view.every == BY_KEY
    run = "The next call runs the job again, " + ("for a key." if keyed else "in the present window.")
    key = [field("Key", "key", required=True)] if keyed else []
    return joined([_form(visit, *change, "", n=view.name), _form(visit, "run", "Run again", run, *key, n=view.name)])


def _form(visit: Visit, action: str, text: str, warning: str, *inputs: Html, **hidden: object) -> Html:
    """Return a form that opens on a click, and asks for a reason."""
    reason = field("Reason", "reason", required=True, maxlength="200", autocomplete="off")
    return tag(
        "details",
        tag("summary", text, id=f"{action}-{hidden.get('token', hidden.get('n', ''))}"),  # so that focus stays on it
        tag("p", warning, class_="dim") if warning else "",
        _post(link(visit.root, f"act/{action}"), text, *inputs, reason, **hidden, csrf=visit.csrf),
    )


def _post(address: str, text: str, *inputs: Html, **hidden: object) -> Html:
    fields = (tag("input", type="hidden", name=key, value=value) for key, value in hidden.items())
    return tag("form", *fields, *inputs, tag("button", text), method="post", action=address)


def _audit(visit: Visit, page: str = "", subject: str = "") -> Html:
    """Return what was done by this console lately: all, or what one page shows, of one subject."""
    lines = [line for line in visit.audit if page in ("", line.page) and subject in ("", line.subject)]
    if not lines:
        return Html()
    headings = ("When (UTC)", "Who", "Did", "To", "Reason", "Outcome")
    rows = (
        (
            line.at,
            shown(line.who),
            line.action,
            theirs(line.subject),
            theirs(line.reason, 200),
            tag("bdi", line.outcome),
        )
        for line in lines
    )
    return joined([tag("h2", "Done in this console"), table(headings, rows, "")])


def login(root: str, csrf: str, *, wrong: bool) -> Html:
    """Return the page that asks for the token."""
    alert = tag("p", "That is not the token.", class_="bad", role="alert") if wrong else ""
    token = field("Token", "token", type="password", required=True, autocomplete="off", autofocus=True)
    return joined([alert, _post(link(root, "login"), "Log in", token, csrf=csrf)])
