"""The error mapping of the etcd store: errors of servers and connections become errors of Tenure.

No error that leaves this file contains a password or a token.
"""

import ssl
from typing import cast

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.etcd.http import JsonObject
from tenure.transport.errors import ServerErrors, why
from tenure.transport.handshake import HandshakeFailed, advice
from tenure.transport.link import ServerAddress

SERVER = ServerErrors("etcd", "the host, the port and the scheme of the URL (etcds:// for TLS)")


class EtcdNotSent(StoreUnavailable):
    """No part of the request was sent: it may go to another server."""


class LeaseGone(Exception):
    """The server does not know the etcd lease, or no longer. Never raised to users."""


class TokenRefused(Exception):
    """The server does not know our token, or no longer, and did nothing. Never raised to users."""


LEASE_GONE = "requested lease not found"
TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "auth: revision in header is old")
LOGIN_REFUSED = ("authentication failed", "user name is empty", "user name not found", "auth: user")
FORBIDDEN = "permission denied"
UNTOUCHED = ("no leader", "too many requests", "authentication is not enabled")
"""Texts of errors after which the server has certainly not carried out the request."""

UNSURE = (1, 2, 4, 8, 10, 13, 14)
"""gRPC codes that leave the outcome unknown: cancelled, unknown, late, exhausted, aborted, internal, unavailable."""


def text_of(said: JsonObject) -> tuple[str, int]:
    """Return the text and the code of an error reply; "" and 0 if the reply is no error."""
    error = said.get("error")
    if isinstance(error, dict):  # in a stream
        inner = cast("JsonObject", error)
        return str(inner.get("message", "an error without a text")), int(inner.get("grpc_code", 2))
    return ("", 0) if error is None else (str(error), int(said.get("code", 2)))


def raise_refusal(address: ServerAddress, said: JsonObject) -> None:
    """Raise the error that a server's reply stands for, if the reply is an error."""
    text, code = text_of(said)
    if not text:
        return
    if LEASE_GONE in text:
        raise LeaseGone(text)
    if any(each in text for each in TOKEN_REFUSED):
        raise TokenRefused(text)
    raise _to_store_error(f"the etcd server at {address}", text, code)


def _to_store_error(server: str, text: str, code: int) -> StoreError:
    said = text.removeprefix("etcdserver: ").rstrip(".")
    if any(each in text for each in LOGIN_REFUSED):
        return StoreError(f"{server} refused the credentials ({said}); check the user and the password in the URL")
    if FORBIDDEN in text:
        return StoreError(f"{server} denies this user access; grant its role READWRITE on the prefix of the URL")
    if any(each in text for each in UNTOUCHED):
        return StoreUnavailable(f"{server} cannot serve now ({said}); try again, and check that most servers run")
    if "space exceeded" in text:
        return StoreError(f"{server} has used up its quota ({said}); compact and defragment it, and disarm its alarm")
    if code in UNSURE:
        return OutcomeUnknown(
            f"{server} did not complete a request ({said}), which may or may not have been carried out; try again"
        )
    return StoreError(f"{server} refused a request ({said}); check its version, which has to be 3.4 or newer")


def cannot_connect(address: ServerAddress, error: BaseException) -> StoreError:
    """Return the error of a failed connection: StoreUnavailable if a later try may help, else StoreError."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreError(
            f"the certificate of the etcd server at {address} is not trusted ({why(error)}); check ssl_ca_certs and "
            "the host name in the URL"
        )
    if isinstance(error, HandshakeFailed):
        return EtcdNotSent(advice(f"the etcd server at {address}", error, "etcd"))
    return EtcdNotSent(*SERVER.cannot_reach(address, error).args)


def unanswered(address: ServerAddress, error: BaseException, *, plain: bool = False) -> OutcomeUnknown:
    """Return the error of a request that was sent and got no reply, or a reply that is not etcd's.

    `plain` tells that the server has not sent anything yet on a connection without TLS.
    """
    if isinstance(error, ValueError):
        return OutcomeUnknown(
            f"the server at {address} is not a JSON gateway of etcd ({why(error)}); check the port, which is "
            "2379 as a rule, and the scheme of the URL (etcds:// for TLS)"
        )
    if plain and isinstance(error, ConnectionResetError | BrokenPipeError):
        return OutcomeUnknown(
            f"the server at {address} closed the connection without a reply; write etcds:// if it requires TLS; else "
            "the request may or may not have been carried out: try again, and check the server and the port"
        )
    return SERVER.unanswered(address, error)
