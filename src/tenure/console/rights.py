"""Who may see a console, and who may act in it."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

from tenure.errors import UsageError

LEAST_TOKEN = 16
"""The length of the shortest token, in characters: nobody can guess one as long."""

LOCAL = {"localhost", "127.0.0.1", "::1"}
"""The names by which a browser reaches a console on its own machine."""

SESSION = "tenure_session"
"""The cookie of a browser that has given the token."""

LASTS = 7 * 86_400
"""For how many seconds a browser keeps that cookie."""


@dataclass(slots=True, frozen=True)
class Access:
    """What a visitor may do: see everything, and also act if `act` is set. Audit lines name the visitor `who`."""

    who: str = "anybody"
    act: bool = False


AccessOf = Callable[[Request], Access | Awaitable[Access | None] | None]
"""Returns what the visitor who sent a request may do; None: nothing."""


@dataclass(slots=True, frozen=True, repr=False)
class Token:
    """Whoever gives the token, on a page or as `Authorization: Bearer TOKEN`, has `access`."""

    secret: str
    access: Access = Access("token")

    def __post_init__(self) -> None:
        if len(self.secret) < LEAST_TOKEN:
            raise UsageError(
                f"a token has at least {LEAST_TOKEN} characters, so that nobody guesses it: make one with `python -c "
                "'import secrets; print(secrets.token_urlsafe())'`"
            )

    def __call__(self, request: Request) -> Access | None:
        """Return the access of a request that has the token, or the cookie of a browser that has given it."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        known = self.fits(given) if kind.lower() == "bearer" else False
        return self.access if known or _same(request.cookies.get(SESSION, ""), self.session()) else None

    def fits(self, given: str) -> bool:
        """Tell whether somebody has given the token, in a time that says nothing about it."""
        return _same(given, self.secret)

    def session(self) -> str:
        """Return the value of the cookie. It is worth the token here, but does not tell it."""
        return hmac.new(self.secret.encode(), b"tenure console", hashlib.sha256).hexdigest()


def local_only(request: Request) -> Access | None:
    """Return read access if the browser calls the console by a name of its own machine.

    A web site that has its own name point to this machine (DNS rebinding) calls the console by that name.
    """
    return Access() if request.url.hostname in LOCAL else None


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def same_origin(request: Request) -> bool:
    """Tell whether a page of this very console sent a request, as the browser says."""
    origin = request.headers.get("origin", "")
    return origin.partition("://")[2] == request.headers.get("host", "") != "" and (
        request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def same_form(cookie: str, field: str) -> bool:
    """Tell whether the token in a form is the one in the cookie that came with the form's page."""
    return len(cookie) >= LEAST_TOKEN and _same(cookie, field)
