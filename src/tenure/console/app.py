"""The ASGI app of the console: who is let in, which page they get, and which headers every answer has.

Each page and action goes through `_guarded`, which finds the visitor's rights by `_access_of`. `_form` reads each POST,
and refuses one that no form of this console has sent. `Console` puts the security headers on every answer, errors
included.
"""

import inspect
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.cli.board import LIMIT, STOCK, Board
from tenure.client import AsyncClient
from tenure.console import pages
from tenure.console.actions import ACTIONS
from tenure.console.audit import Audit
from tenure.console.html import NAV, Html, document, joined, link, tag
from tenure.console.pages import Visit
from tenure.console.rights import LASTS, SESSION, Access, AccessOf, Token, same_form, same_origin
from tenure.contracts.limits import check_duration, check_name
from tenure.errors import UsageError
from tenure.escaping import shown

CSRF = "tenure_csrf"
"""The cookie whose value every form has, too."""

MOST_BODY, MOST_FIELDS, MOST_REASON = 65_536, 20, 200
"""The bounds of what a form may send: bytes, fields, characters of a reason."""

MOST_STREAMS, STREAM_LASTS = 200, 60.0
"""How many browsers are told of looks at a time, and for how many seconds until they ask again."""

NO_ACCESS = "You have no access to this console: whoever runs it decides who has, by `access`."
FORGED = (
    "The request did not come from a form of this console, so nothing was done. Load the page again and repeat it. "
    "Behind a proxy: it must pass on the header Host as the browser sends it."
)
FAILED = "The console failed. Its log says why."
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # without a referrer, browsers send no origin, and forms would be refused
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Handler = Callable[[Request, Access], Awaitable[Response]]


class Console:
    """The ASGI app: mount it, or serve it alone. Made by `console`."""

    def __init__(self, app: ASGIApp, board: Board) -> None:
        self._app = app
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update({**HEADERS, "content-security-policy": policy})
            await send(message)

        await self._app({**scope, "tenure_nonce": nonce}, receive, send_with_headers)

    def close(self) -> None:
        """End the streams to all browsers, so that a server can stop. The end of the app's lifespan does it as well."""
        self._board.close()


def console(
    client: AsyncClient,
    *,
    access: Access | AccessOf,
    long_wait: float = 30.0,
    limits: Iterable[str] = (),
    stocks: Iterable[str] = (),
) -> Console:
    """Return an ASGI app that shows the names, jobs and store of a client to people in browsers.

    Mount it in an app of Starlette, FastAPI or Django, or serve it by an ASGI server; `tenure serve` does that. Close
    the client after the app has ended. However many browsers watch, the store is looked at once a second at most, and
    not at all while nobody watches.

    Args:
        client: the client to look with, and its namespace.
        access: who may do what. An Access is for everybody who reaches the app. A function is called with each Request,
            and returns an Access, or None to refuse it; it may be async. A Token lets in whoever has given it.
        long_wait: for how many seconds a waiter waits before that is shown as trouble.
        limits: the names of limits to show. A store keeps no list of them.
        stocks: the names of stocks to show.

    Raises UsageError if an argument is wrong.
    """
    if not isinstance(cast("object", client), AsyncClient):
        raise UsageError(
            f"a console runs in an event loop, so it needs an AsyncClient, not {type(client).__name__}: make one of "
            "the same URL, tenure.AsyncClient(url)"
        )
    always = [(LIMIT, check_name(each)) for each in limits] + [(STOCK, check_name(each)) for each in stocks]
    made = _Console(Board(client, always), access, check_duration(long_wait, "long_wait"))
    return Console(made.app(), made.board)


class _Console:
    def __init__(self, board: Board, access: Access | AccessOf, long_wait: float) -> None:
        self.board = board
        self._access = access
        self._long_wait = long_wait
        self._audit = Audit()
        self._streams = 0

    def app(self) -> Starlette:
        """Return the app without its headers."""
        made = {"": pages.trouble, "name": pages.name}
        made |= {path: getattr(pages, path) for path in NAV if path}
        routes = [Route(f"/{path}", self._guarded(self._page(path, page))) for path, page in made.items()]
        routes += [Route(f"/act/{each}", self._guarded(self._action(each)), methods=["POST"]) for each in ACTIONS]
        routes += [Route("/events", self._guarded(self._events))]
        if isinstance(self._access, Token):
            routes += [Route("/login", self._login, methods=["GET", "POST"])]
        handlers = dict.fromkeys((HTTPException, UsageError, Exception), _refused)
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None]:
        yield
        self.board.close()

    # -- who ---------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that lets in whom `access` lets in."""

        async def endpoint(request: Request) -> Response:
            access = await self._access_of(request)
            if access is not None:
                return await handler(request, access)
            if isinstance(self._access, Token) and request.method == "GET" and not request.url.path.endswith("/events"):
                return RedirectResponse(link(_root(request), "login"), 303)
            raise HTTPException(403, NO_ACCESS)

        return endpoint

    async def _access_of(self, request: Request) -> Access | None:
        if isinstance(self._access, Access):
            return self._access
        found = self._access(request)
        return await found if inspect.isawaitable(found) else found

    async def _login(self, request: Request) -> Response:
        token, root = self._access, _root(request)
        assert isinstance(token, Token)  # noqa: S101 - else there is no such route
        wrong = False
        if request.method == "POST":
            form = await _form(request)
            if token.fits(form.get("token", "")):
                done = RedirectResponse(link(root, ""), 303)
                _set_cookie(request, done, SESSION, token.session(), LASTS)
                return done
            wrong = True
            self._audit.refuse("somebody", "login", "the token was wrong")
        return _with_csrf(
            request, lambda csrf: pages.login(root, csrf, wrong=wrong), "Log in", status=403 if wrong else 200
        )

    # -- pages -------------------------------------------------------------------------------------------------

    def _page(self, path: str, page: Callable[[Visit], Html]) -> Handler:
        async def handler(request: Request, access: Access) -> Response:
            query = dict(request.query_params)
            title = NAV.get(path, "Name")
            if path == "name" or (path == "quantities" and query.get("n")):
                asked = check_name(query.get("n", ""))
                kind = "name" if path == "name" else STOCK if query.get("kind") == STOCK else LIMIT
                title = f"Name {shown(asked)}" if kind == "name" else title
                self.board.include(kind, asked)
            if path == "store":
                await self.board.examine()
            snapshot = await self.board.current()

            def body(csrf: str) -> Html:
                lines = self._audit.lines()
                args = (_root(request), self.board, snapshot, access.act, csrf, self._long_wait, lines, query)
                return page(Visit(*args))

            return _with_csrf(request, body, title, here=path, age=pages.age_of(snapshot))

        return handler

    async def _events(self, _request: Request, _access: Access) -> Response:
        """Tell a browser of each look at the store."""
        if self._streams >= MOST_STREAMS:
            raise HTTPException(503, f"More than {MOST_STREAMS} browsers watch this console. Load the page by hand.")

        async def told() -> AsyncIterator[str]:
            self._streams += 1
            try:
                yield "retry: 2000\n\n"
                async for serial in self.board.looks(STREAM_LASTS):
                    yield f"data: {serial}\n\n"
            finally:
                self._streams -= 1

        return StreamingResponse(told(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    # -- actions -----------------------------------------------------------------------------------------------

    def _action(self, name: str) -> Handler:
        action = ACTIONS[name]

        async def handler(request: Request, access: Access) -> Response:
            if not access.act:
                self._audit.refuse(access.who, action.title, "the visitor may only read")
                raise HTTPException(403, "You may only read here: whoever runs this console decides who may act.")
            try:
                form = await _form(request)
            except HTTPException:
                self._audit.refuse(access.who, action.title, "the request was forged, or out of date")
                raise
            reason = form.get("reason", "").strip()
            if not reason or len(reason) > MOST_REASON:
                raise HTTPException(400, f"Nothing was done: give a reason of up to {MOST_REASON} characters.")
            subject = self.board.title if action.page == "store" else check_name(form.get("n", ""))
            await self._audit.record(access.who, action, subject, reason, action.do(self.board, form))
            self.board.expire()
            query = {"n": subject} if action.page == "name" else {}
            return RedirectResponse(link(_root(request), action.page, **query), 303)

        return handler


def _root(request: Request) -> str:
    """Return the path at which the app is mounted, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form that this console has made. Raises HTTPException if another page has sent it."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise HTTPException(413, "The form is too large; nothing was done.")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(400, "The form is broken; nothing was done.") from error
    if not same_origin(request) or not same_form(request.cookies.get(CSRF, ""), fields.pop("csrf", "")):
        raise HTTPException(403, FORGED)
    return fields


def _with_csrf(
    request: Request,
    body: Callable[[str], Html],
    title: str,
    *,
    status: int = 200,
    here: str | None = None,
    age: object = "",
) -> Response:
    """Return a page whose forms have the token that its cookie has."""
    cookie = request.cookies.get(CSRF, "")
    csrf = cookie if same_form(cookie, cookie) else secrets.token_urlsafe()
    part, nonce = "tenure-part" in request.headers, request.scope["tenure_nonce"]
    page = document(title, body(csrf), age, root=_root(request), nonce=nonce, here=here, part=part)
    response = HTMLResponse(page, status)
    _set_cookie(request, response, CSRF, csrf, None)
    return response


def _set_cookie(request: Request, response: Response, name: str, value: str, lasts: int | None) -> None:
    secure = request.url.scheme == "https"
    path = _root(request) or "/"
    response.set_cookie(name, value, max_age=lasts, path=path, secure=secure, httponly=True, samesite="lax")


# -- errors --------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    """Return the page of an error; what failed inside is for the log alone."""
    status, text = 500, FAILED
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    elif isinstance(error, UsageError):
        status, text = 400, str(error)
    root = _root(request)
    body = joined([tag("p", text), tag("p", tag("a", "To the first page", href=link(root, "")))])
    return HTMLResponse(document(f"Error {status}", body, "", root=root, nonce=request.scope["tenure_nonce"]), status)
