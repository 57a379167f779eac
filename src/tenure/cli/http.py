"""What the command serves over HTTP: `exporter` and `serve`; and the small server of `exporter` and `elect`.

The exporter tells what no process can tell of itself: leases of processes that died, and waiters behind them. It looks
at the store when it is scraped, but at most once a second, however many scrapes come, and each look has an end. No
label is a name: names are counted by the templates that the operator gives, shell patterns such as `invoice-*`.
"""

import ipaddress
import logging
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tenure.cli.commands import (
    NAMESPACE,
    URL,
    Options,
    argument,
    client_of,
    command,
    find_address,
    flag,
    seconds,
    whole,
)
from tenure.cli.output import Status, Teller, kind_of, tell, tell_warnings
from tenure.client import AsyncClient, Client
from tenure.errors import StoreError, UsageError

if TYPE_CHECKING:
    from tenure.contracts.messages import NameView

MOST_REQUESTS = 16
"""The most requests that are answered at the same time; further connections are closed."""

REQUEST_TIMEOUT = 5.0
"""How long a visitor may take to send its request, or to read the answer, in seconds."""

LAST_PORT = 65_535


class Answer(NamedTuple):
    """What a request is answered."""

    body: str
    kind: str
    """The value of Content-Type."""
    status: HTTPStatus = HTTPStatus.OK


def url_of(server: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = server.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(ThreadingHTTPServer):
    """A server that answers each path by a function; None is 404."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[str], Answer | None]) -> None:
        """Listen at an address. Raises OSError."""
        self.answer = answer
        self._requests = threading.BoundedSemaphore(MOST_REQUESTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Request)

    @property
    def url(self) -> str:
        """Where it listens."""
        return url_of(self.socket)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as of the base class
        """Answer a request in a thread of its own; close the connection if too many are under way."""
        if not self._requests.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._requests.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Ignore a visitor that has gone."""


class _Request(BaseHTTPRequestHandler):
    """One request."""

    timeout = REQUEST_TIMEOUT
    server_version = "tenure"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a path."""
        answer = cast("HttpServer", self.server).answer(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = answer.body.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as of the base class
        """Log no requests."""


def listening(text: str, option: str, answer: Callable[[str], Answer | None]) -> HttpServer:
    """Return a server that listens at `HOST:PORT`, without a host at 127.0.0.1. Raises UsageError if it cannot."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > LAST_PORT:
        raise UsageError(f"{option} takes HOST:PORT, such as 127.0.0.1:8080, and not {text!r}.")
    try:
        return HttpServer((host.strip("[]") or "127.0.0.1", int(port)), answer)
    except OSError as error:
        raise UsageError(f"cannot listen at {text}: {error.strerror or error}. Give another {option}.") from error


# -- the exporter --------------------------------------------------------------------------------------------

LOOK_EVERY = 1.0
"""The least time between two looks, in seconds."""

LONGEST_LOOK = 5.0
"""For how many seconds a look begins requests."""

MOST_NAMES = 1000
"""The most names that one look inspects. The names after them are only counted, up to MOST_COUNTED."""

MOST_COUNTED = 100_000

OTHER = "other"
"""The template of names that match none of the patterns."""

ANY_NAME = "tenure"
"""The name that is inspected to learn of a quarantine if the store has no names."""

STATES = ("running", "done", "failed", "paused", "new")
"""The states of jobs, which are all shown, also if no job has them."""

Labels = tuple[tuple[str, str], ...]


class ScrapeText:
    """The text of a scrape, in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, text: str, values: dict[Labels, float]) -> None:
        """Add a gauge."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for labels, value in sorted(values.items()):
            inner = ",".join(f'{label}="{_escaped(of)}"' for label, of in labels)
            self._lines.append(f"{name}{{{inner}}} {value:g}" if inner else f"{name} {value:g}")

    def text(self) -> str:
        """Return the text."""
        return "\n".join(self._lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Looks:
    """The looks at one store."""

    def __init__(self, client: Client, templates: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        """Look through `client`, and count names by the first of `templates` that they match."""
        self._client = client
        self._templates = tuple(templates)
        self._now = now
        self._mutex = threading.Lock()
        self._text = ""
        self._ended_at = -LOOK_EVERY
        self._lists_names = True
        self._keeps_jobs = True

    def text(self) -> str:
        """Return what the last look has shown, if that has ended within the last second; else look again.

        Scrapes that come during a look get what it shows.
        """
        with self._mutex:
            if self._now() - self._ended_at >= LOOK_EVERY:
                self._text = self._look()
                self._ended_at = self._now()
            return self._text

    def _look(self) -> str:
        page, began = ScrapeText(), self._now()
        up = 1.0
        try:
            self._add_names(page, began + LONGEST_LOOK)
            self._add_jobs(page)
        except StoreError as error:
            up = 0.0
            tell(error)
        page.add("tenure_store_up", "Whether the store has answered.", {(): up})
        page.add("tenure_store_look_seconds", "How long the look at the store took.", {(): self._now() - began})
        return page.text()

    def answer(self, path: str) -> Answer | None:
        """Return what a request for a path is answered."""
        return Answer(self.text(), "text/plain; version=0.0.4; charset=utf-8") if path == "/metrics" else None

    # -- names ---------------------------------------------------------------------------------------------

    def _add_names(self, page: ScrapeText, until: float) -> None:
        views: list[NameView] = []
        uninspected, quarantine = 0, 0.0
        for name in self._names():
            if len(views) >= MOST_NAMES or self._now() >= until:
                uninspected += 1
                continue
            views.append(self._client.inspect(name))
        if not views:
            quarantine = self._client.inspect(ANY_NAME).quarantined_for
        quarantine = max([quarantine, *(view.quarantined_for for view in views)])
        holders, waiters, held_for, waited_for = (defaultdict[Labels, float](float) for _ in range(4))
        for view in views:
            labels = (("kind", kind_of(view)), ("template", self._template_of(view.name)))
            holders[labels] += len(view.holders)
            waiters[labels] += sum(each.alive for each in view.waiters)
            held_for[labels] = max([held_for[labels], *(each.held_for for each in view.holders)])
            waited_for[labels] = max([waited_for[labels], *(each.waited_for for each in view.waiters if each.alive)])
        page.add("tenure_store_holders", "Leases that the store keeps, also of dead processes.", holders)
        page.add("tenure_store_waiters", "Waiters in the store; a process counts once for each name.", waiters)
        page.add("tenure_store_longest_hold_seconds", "For how long the oldest lease is held.", held_for)
        page.add("tenure_store_longest_wait_seconds", "For how long the oldest waiter waits.", waited_for)
        page.add("tenure_store_quarantine_seconds", "For how long the store still grants nothing.", {(): quarantine})
        text = "Names in use that this look did not inspect: there were too many, or the store was slow."
        page.add("tenure_store_names_uninspected", text, {(): uninspected})

    def _names(self) -> Sequence[str]:
        if not self._lists_names:
            return ()
        try:
            return list(islice(self._client.iter_names(), MOST_COUNTED))
        except UsageError:  # the store lists no names
            self._lists_names = False
            return ()

    def _template_of(self, name: str) -> str:
        return next((each for each in self._templates if fnmatchcase(name, each)), OTHER)

    # -- jobs ----------------------------------------------------------------------------------------------

    def _add_jobs(self, page: ScrapeText) -> None:
        if not self._keeps_jobs:
            return
        try:
            views = self._client.jobs()
        except UsageError:  # the store keeps no jobs
            self._keeps_jobs = False
            return
        from tenure.cli.output import state_of

        states, running_for = defaultdict[Labels, float](float), defaultdict[Labels, float](float)
        for view in views:
            template, now = self._template_of(view.name), state_of(view)
            for state in STATES:
                states[("state", state), ("template", template)] += state == now
            of_template = (("template", template),)
            running_for[of_template] = max(running_for[of_template], view.running_for or 0.0)
        page.add("tenure_store_jobs", "Jobs by the state of their last window.", states)
        page.add("tenure_store_longest_run_seconds", "For how long the oldest run goes on.", running_for)


@command(
    "exporter",
    "[URL]",
    *URL,
    NAMESPACE(help="Look only at the names with this prefix."),
    argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9797",
        help="Where to listen. Default: 127.0.0.1:9797, for this machine alone.",
    ),
    argument(
        "--template",
        metavar="PATTERN",
        action="append",
        default=[],
        help="Count the names and jobs that match this pattern by themselves. Repeat it for more patterns.",
    ),
)
def exporter(options: Options) -> int:
    """Serve /metrics for Prometheus: what the store says of holders, waiters, jobs and quarantine.

    This tells what processes cannot tell of themselves, for they may be dead. The store is asked when somebody
    scrapes, at most once a second. No label is a name: `--template 'invoice-*'` counts all names that match as one,
    and all names that match no pattern are counted as `other`. Processes tell more of what they hold and wait for:
    docs/metrics.md says how.

    Runs until it is ended. Exits with 64: wrong usage, or the address is in use.
    """
    with client_of(options) as client:
        looks = Looks(client, options.template)
        with listening(options.listen, "--listen", looks.answer) as server:
            tell(f"serving {server.url}/metrics.")
            server.serve_forever()
    return Status.DONE


# -- the console ---------------------------------------------------------------------------------------------

TOKEN_VARIABLE = "TENURE_CONSOLE_TOKEN"  # noqa: S105 - the name of the variable
"""The environment variable with the token."""

ENDING = 3
"""For how many seconds a server that was told to end waits for the answers under way."""

ADVICE = f"put a secret of 16 characters or more into a file and give it as --token-file, or into {TOKEN_VARIABLE}"


@command(
    "serve",
    "[URL]",
    *URL,
    NAMESPACE(help="Show only the names with this prefix."),
    argument("--host", default="127.0.0.1", help="The address to listen at. Default: 127.0.0.1."),
    argument("--port", type=whole(0, 65535), default=8377, help="The port. Default: 8377; 0: any free one."),
    argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help="A file with the secret that visitors must give. Default: TENURE_CONSOLE_TOKEN in the environment.",
    ),
    flag("--act", help="Whoever gives the token may also revoke leases, and pause, resume and run jobs."),
    argument("--root-path", metavar="PATH", default="", help="The path at which a proxy shows the console."),
    seconds("--long-wait", least=0, default=30.0, help="After how long a wait is trouble. Default: 30."),
    *(
        argument(
            f"--{kind}",
            action="append",
            metavar="NAME",
            default=[],
            help=f"A {kind} to show; may be given several times.",
        )
        for kind in ("limit", "stock")
    ),
)
def serve(options: Options) -> int:
    """Show the names, jobs and store in a browser, until SIGINT or SIGTERM ends it: the console.

    Without a token only browsers on this machine are let in, and they only read. A --host that other machines reach
    needs a token. Needs the extra web: pip install 'tenure[web]'.

    Exits with 64 for wrong usage; 128+N if signal N ended it.
    """
    import asyncio

    try:
        import uvicorn

        from tenure.console import Access, Token, console
        from tenure.console.rights import local_only
    except ModuleNotFoundError as error:
        raise UsageError("`tenure serve` needs Starlette and uvicorn: pip install 'tenure[web]'") from error

    address = find_address(options)
    token = _token(options.token_file)
    if token is None and not _is_local(options.host):
        raise UsageError(f"other machines reach {options.host}, and no token protects the console: {ADVICE}")
    if token is None and options.act:
        raise UsageError(f"--act needs a token, because every user of this machine reaches the port: {ADVICE}")
    access = local_only if token is None else Token(token, Access("token", act=options.act))

    class Server(uvicorn.Server):
        """A server that leaves the signals to this command."""

        @contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    async def run() -> int:
        async with AsyncClient(address.url, namespace=options.namespace) as client:
            app = console(
                client, access=access, long_wait=options.long_wait, limits=options.limit, stocks=options.stock
            )
            config = uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                root_path=options.root_path.rstrip("/"),
                timeout_graceful_shutdown=ENDING,
            )
            server, ended_by = Server(config), [0]

            def end(number: int, _frame: object) -> None:
                ended_by[0] = number
                server.should_exit = True
                loop.call_soon_threadsafe(app.close)

            loop = asyncio.get_running_loop()
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, end)
            title = client._source.title  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            tell(f"the console of {title} is at {url_of(listening)}{config.root_path}/")
            await server.serve([listening])
            return Status.SIGNALLED + ended_by[0] if ended_by[0] else Status.DONE

    address.warn()
    tell_warnings()
    log = logging.getLogger("tenure.audit")
    log.setLevel(logging.INFO)
    log.addHandler(Teller())
    log.propagate = False
    with _listen(options.host, options.port) as listening:
        return asyncio.run(run())


def _token(file: Path | None) -> str | None:
    """Return the token from the file, else from the environment; None if there is none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"the token cannot be read from {file}: {error}") from error


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UsageError if that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise UsageError(f"the console cannot listen at {host}, port {port} ({error}): give another --port") from error
