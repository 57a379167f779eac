"""Each bug that a maintainer may plant in the console is found by a check."""

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tenure.cli import board
from tenure.console import actions, app, audit, html, rights
from tenure.primitives import draining
from tests.console import checks
from tests.console.visiting import Check, visit


@dataclass(frozen=True)
class Bug:
    """A part of a function or a class, as a maintainer may get it wrong."""

    place: Any
    right: str
    wrong: str
    check: Check
    """The check that finds it."""


BUGS = {
    "a name is not escaped": Bug(
        html.escaped, "html.escape(escape(str(value)))", "escape(str(value))", checks.hostile_text_is_text
    ),
    "quotes are not escaped": Bug(
        html.escaped,
        "html.escape(escape(str(value)))",
        "html.escape(escape(str(value)), quote=False)",
        checks.hostile_text_is_text,
    ),
    "attributes are not escaped": Bug(html.tag, '"{escaped(value)}"', '"{value}"', checks.hostile_text_is_text),
    "control characters are shown": Bug(html.escaped, "escape(str(value))", "str(value)", checks.hostile_text_is_text),
    "every text is HTML": Bug(
        html.escaped, "if isinstance(value, Html)", "if isinstance(value, str)", checks.hostile_text_is_text
    ),
    "an action by GET": Bug(
        app._Console, 'methods=["POST"]) for each', 'methods=["GET", "POST"]) for each', checks.an_action_is_never_a_get
    ),
    "no token in the form": Bug(
        app._form, "not same_form(", "False and not same_form(", checks.a_forged_form_is_refused
    ),
    "an empty token in the form": Bug(
        rights.same_form, "len(cookie) >= LEAST_TOKEN and", "", checks.a_forged_form_is_refused
    ),
    "no check of the origin": Bug(app._form, "not same_origin(request) or", "", checks.a_forged_form_is_refused),
    "an origin that begins alike": Bug(
        rights.same_origin,
        'origin.partition("://")[2] == request.headers.get("host", "") != ""',
        'origin.partition("://")[2].startswith(request.headers.get("host", ""))',
        checks.a_forged_form_is_refused,
    ),
    "no origin is a good one": Bug(
        rights.same_origin,
        'request.headers.get("origin", "")',
        'request.headers.get("origin", "http://" + request.headers["host"])',
        checks.a_forged_form_is_refused,
    ),
    "no check of the site": Bug(rights.same_origin, '== "same-origin"', '!= ""', checks.a_forged_form_is_refused),
    "readers may act": Bug(app._Console, "if not access.act:", "if False:", checks.only_rights_act),
    "the stream is for everybody": Bug(
        app._Console,
        "raise HTTPException(403, NO_ACCESS)",
        "return await handler(request, Access())",
        checks.only_rights_act,
    ),
    "who has no access may read": Bug(
        app._Console,
        "if access is not None:",
        "if access is not None or request.method == 'GET':",
        checks.only_rights_act,
    ),
    "the beginning of the token": Bug(
        rights.Token, "_same(given, self.secret)", "self.secret.startswith(given)", checks.a_token_is_needed
    ),
    "a comparison that tells": Bug(
        rights.Token, "_same(given, self.secret)", "given == self.secret", checks.a_token_is_needed
    ),
    "the token in the cookie": Bug(
        rights.Token,
        'hmac.new(self.secret.encode(), b"tenure console", hashlib.sha256).hexdigest()',
        "self.secret",
        checks.a_token_is_needed,
    ),
    "no headers on errors": Bug(
        app.Console,
        'message["type"] == "http.response.start"',
        'message["type"] == "http.response.start" and message["status"] < 400',
        checks.every_answer_has_the_headers,
    ),
    "a nonce for ever": Bug(app.Console, "secrets.token_urlsafe(16)", '"nonce"', checks.every_answer_has_the_headers),
    "an error tells what failed": Bug(
        app._refused,
        "status, text = 500, FAILED",
        "status, text = 500, str(error)",
        checks.every_answer_has_the_headers,
    ),
    "each browser looks": Bug(
        board.Board,
        "if self._next is None or self._next.done():",
        "if True:",
        checks.many_watchers_are_one_look_a_second,
    ),
    "no pause between looks": Bug(
        board.Board,
        "await asyncio.sleep(self._due - _now())",
        "await asyncio.sleep(0.5)",
        checks.many_watchers_are_one_look_a_second,
    ),
    "a look that is left stops all": Bug(
        board.Board,
        "await asyncio.wait([self._next])",
        "await self._next",
        checks.a_watcher_that_leaves_stops_nobody,
    ),
    "a store that is down has no names": Bug(
        board.Board,
        "replace(last, serial=last.serial + 1, error=quoted(error))",
        "Snapshot(last.serial + 1, last.seen_at, error=quoted(error))",
        checks.a_store_that_is_down_is_shown,
    ),
    "a store that is down looks fresh": Bug(
        board.Board,
        "replace(last, serial=last.serial + 1, error=quoted(error))",
        "replace(last, serial=last.serial + 1, error=quoted(error), seen_at=began)",
        checks.a_store_that_is_down_is_shown,
    ),
    "all names are awaited": Bug(
        board.Board, "self.snapshot = found", "pass", checks.the_first_names_do_not_wait_for_the_last
    ),
    "a first part is taken for all": Bug(
        board.Board,
        "error=self.snapshot.error)",
        "error=self.snapshot.error, seen_at=_now())",
        checks.the_first_names_do_not_wait_for_the_last,
    ),
    "any holder loses the name": Bug(actions._take, ", token=int(token))", ")", checks.a_name_is_taken_by_its_token),
    "the page after an action is old": Bug(
        app._Console, "self.board.expire()", "pass", checks.a_name_is_taken_by_its_token
    ),
    "a failed action is not in the log": Bug(
        audit.Audit,
        '            outcome = f"failed: {quoted(error)}"\n        finally:',
        "            return\n        else:",
        checks.every_action_is_in_the_log,
    ),
    "a refused action is not in the log": Bug(
        app._Console,
        'self._audit.refuse(access.who, action.title, "the request was forged, or out of date")',
        "pass",
        checks.every_action_is_in_the_log,
    ),
    "each page examines": Bug(
        board.Board, "_now() >= self._examine_at and", "", checks.the_settings_are_examined_once_a_minute
    ),
    "an examination that failed is silent": Bug(
        board.Board, "self.unexamined = quoted(error)", "pass", checks.the_settings_are_examined_once_a_minute
    ),
    "every page examines": Bug(
        app._Console, 'if path == "store":', "if True:", checks.the_settings_are_examined_once_a_minute
    ),
    "a drain without confirmation": Bug(actions._drain, 'not form.get("sure")', "False", checks.a_host_is_drained),
    "a host with a longer name is drained": Bug(
        draining.is_of, 'owner.startswith(f"{host}/")', "owner.startswith(host)", checks.a_host_is_drained
    ),
    "a drain of a store that is down succeeds": Bug(
        actions._drain, "snapshot.error or not snapshot.seen", "False", checks.a_host_is_drained
    ),
    "no history is read": Bug(
        board.Board, "found.histories[name] = await self._history(name)", "pass", checks.a_history_is_shown
    ),
    "no reason": Bug(app._Console, "if not reason or", "if", checks.a_reason_is_needed),
    "no bound of a form": Bug(app._form, "len(body) > MOST_BODY", "False", checks.a_reason_is_needed),
    "links begin at the root": Bug(html.link, 'f"{root}/{path}"', 'f"/{path}"', checks.links_begin_at_the_mount),
    "cookies are for the whole site": Bug(
        app._set_cookie, '_root(request) or "/"', '"/"', checks.links_begin_at_the_mount
    ),
    "any name is this machine": Bug(
        rights.local_only,
        "request.url.hostname in LOCAL",
        "any(map(request.url.hostname.startswith, LOCAL))",
        checks.local_only_is_local,
    ),
}


def plant(bug: Bug, patch: pytest.MonkeyPatch) -> None:
    """Put the wrong code in place of the right one."""
    home = sys.modules[bug.place.__module__]
    source = textwrap.dedent(inspect.getsource(bug.place))
    assert source.count(bug.right) == 1, f"{bug.place.__name__} says {bug.right!r} {source.count(bug.right)} times"
    space = dict(vars(home))
    exec(compile(source.replace(bug.right, bug.wrong), "a bug", "exec"), space)  # noqa: S102 - the source is our own
    wrong: Any = space[bug.place.__name__]
    pairs: list[tuple[Any, Any]] = [(bug.place, wrong)]
    if inspect.isclass(bug.place):
        right: dict[str, Any] = dict(vars(cast("type", bug.place)))
        methods: dict[str, Any] = dict(vars(cast("type", wrong)))
        pairs = [(right[key], value) for key, value in methods.items() if inspect.isfunction(value)]
    for function, other in pairs:  # in place, for others have imported it
        patch.setattr(function, "__code__", other.__code__)


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """By the check that promises the opposite, and by nothing that is broken by itself."""
    with pytest.MonkeyPatch.context() as patch:
        plant(bug, patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            visit(bug.check)
