"""Runs moto's emulator of AWS at a port of this machine: `python emulator.py PORT`.

The emulator looks at a condition and then writes, and another of its threads may come in between. So it serves one
request after the other.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from werkzeug.serving import run_simple


def one_by_one(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Return an app that serves one request at a time."""
    turn = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with turn:
            return list(app(environ, start_response))

    return serve


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    moto: Any = import_module("moto.moto_server.werkzeug_app")
    app = one_by_one(moto.DomainDispatcherApplication(moto.create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=moto.MotoRequestHandler)
