"""A proxy in front of an emulator of DynamoDB that notes requests, answers errors, and takes conditions away."""

import http.client
import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenure.stores.dynamodb.table import REPLY_TYPE
from tests.servers import DynamoServer

PAGE = b"<html>Log in to use this network.</html>", "text/html"
"""A page for people, and its type."""


@dataclass(slots=True)
class Says:
    """An error that the next request of an operation gets."""

    operation: str
    status: int
    code: str
    message: str = ""
    done: bool = False
    """Whether the request is carried out all the same."""


@dataclass(slots=True)
class Held:
    """A write that stands still: before it arrives, or with `done` before its reply."""

    met: Callable[[], object]
    """Called when it does."""
    done: bool
    goes_on: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it was answered."""


class Gateway(ThreadingHTTPServer):
    """The proxy."""

    daemon_threads = True

    def __init__(self, server: DynamoServer) -> None:
        self.behind = server.address
        self.removes = ""
        """The beginning of the conditions that it takes away; "": none."""
        self.errors: list[Says] = []
        self.cuts: list[str] = []
        """The operations whose next reply ends in its middle."""
        self.pages: list[str] = []
        """The operations whose next request does not arrive: a page answers it."""
        self.page, self.page_type = PAGE
        self.held: Held | None = None
        """What holds the next write."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """The operation and the body of each request."""
        super().__init__(("127.0.0.1", 0), _Passing)

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.server_address[1]

    def of(self, operation: str) -> list[dict[str, Any]]:
        """Return the bodies of the requests of an operation."""
        return [body for each, body in self.requests if each == operation]

    def take_error(self, operation: str) -> Says | None:
        """Return the error that a request gets, and forget it; None if it gets none."""
        found = next((each for each in self.errors if each.operation == operation), None)
        if found is not None:
            self.errors.remove(found)
        return found


@contextmanager
def gateway_to(server: DynamoServer) -> Generator[Gateway]:
    """Run a proxy."""
    with Gateway(server) as gateway:
        thread = threading.Thread(target=gateway.serve_forever)
        thread.start()
        try:
            yield gateway
        finally:
            gateway.shutdown()
            thread.join()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        gateway: Any = self.server
        operation = self.headers["x-amz-target"].partition(".")[2]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        gateway.requests.append((operation, dict(body)))
        if gateway.removes and str(body.get("ConditionExpression")).startswith(gateway.removes):
            for each in ("ConditionExpression", "ExpressionAttributeNames", "ExpressionAttributeValues"):
                body.pop(each, None)
        held, gateway.held = (gateway.held, None) if operation == "PutItem" else (None, gateway.held)
        if held is not None and not held.done:
            held.met()
            held.goes_on.wait()
        error = gateway.take_error(operation)
        status, text, kind = 200, b"", REPLY_TYPE
        if operation in gateway.pages:
            gateway.pages.remove(operation)
            text, kind = gateway.page, gateway.page_type
        elif error is None or error.done:
            status, text = self._pass_on(gateway.behind, json.dumps(body))
        if error is not None:
            said = {"__type": f"com.amazonaws.dynamodb.v20120810#{error.code}", "message": error.message}
            status, text = error.status, json.dumps(said).encode()
        if held is not None:
            if held.done:
                held.met()
                held.goes_on.wait()
            held.over.set()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        if operation in gateway.cuts:
            gateway.cuts.remove(operation)
            text, self.close_connection = text[: len(text) // 2], True
        with suppress(BrokenPipeError, ConnectionResetError):  # a client whose time was up waits no longer
            self.end_headers()
            self.wfile.write(text)

    def _pass_on(self, where: tuple[str, int], body: str) -> tuple[int, bytes]:
        behind = http.client.HTTPConnection(*where, timeout=30)
        try:
            kept = {key: value for key, value in self.headers.items() if key.lower() != "content-length"}
            behind.request("POST", "/", body, kept)
            reply = behind.getresponse()
            return reply.status, reply.read()
        finally:
            behind.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base names it
        """Say nothing."""
