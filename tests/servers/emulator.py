"""Runs moto's emulator of AWS at a port of this machine: `python emulator.py PORT`.

The emulator looks at a condition and then writes, and another of its threads may come in between. So it serves one
request after the other.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class Handler(MotoRequestHandler):
    """Logs nothing."""

    def log_request(self, *_: object) -> None:
        """Say nothing."""


def one_by_one(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Return an app that serves one request at a time."""
    turn = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with turn:
            return list(app(environ, start_response))

    return serve


if __name__ == "__main__":
    run_simple(
        "127.0.0.1",
        int(sys.argv[1]),
        one_by_one(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=Handler,
    )
