"""What both clients share: their arguments, the checks of what they make, and all that needs no form of the API."""

import inspect
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Never

from tenure import fork
from tenure.callables import refuse_async_callback
from tenure.client.checks import HISTORIES, JOBS, Checks
from tenure.contracts.findings import Report
from tenure.contracts.handles import Handle, read_handle
from tenure.contracts.limits import (
    EVERYBODY,
    MOST_TOKENS,
    check_count,
    check_duration,
    check_name,
    check_number,
    check_timeout,
    check_ttl,
)
from tenure.contracts.messages import HolderView, NameView, Page
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.access import DRAINED
from tenure.core.events import LockEvent
from tenure.core.handover import adopt
from tenure.core.requests import Settings
from tenure.core.session import Session
from tenure.errors import Stopped, StoreUnavailable, UsageError
from tenure.explanation import Explanation
from tenure.keeping import NotCopied
from tenure.primitives.base import F, guarded
from tenure.primitives.options import refuse_unknown
from tenure.reentry import outside
from tenure.runtimes.ending import import_executors_at_exit
from tenure.runtimes.real import host_name
from tenure.runtimes.threads import ThreadsRuntime

if TYPE_CHECKING:
    from datetime import datetime  # noqa: TID251 - a type; no clock is read

    from tenure.core.lease import CoreLease
    from tenure.primitives.history import HistoryEntry
    from tenure.primitives.jobs import JobView

DEFAULT_TTL = 30.0
DRAIN_TIMEOUT = 20.0
"""For how many seconds a client that is drained waits for its holders: less than the 30 that Kubernetes gives a pod."""

MOST_ADVICE = 2
"""How many findings about the settings of the store a client logs."""

LATER = (
    "tenure.core.explaining",
    "tenure.fencing.sql",
    "tenure.primitives.counter",
    "tenure.primitives.election",
    "tenure.primitives.history",
    "tenure.primitives.jobs",
    "tenure.primitives.limit",
    "tenure.primitives.multilock",
    "tenure.primitives.once",
    "tenure.primitives.reentrant",
    "tenure.primitives.rwlock",
    "tenure.primitives.semaphore",
    "tenure.primitives.stock",
    "tenure.primitives.why",
)
"""The modules that the first client imports. `import tenure` leaves them out, to take less time."""


def _literal_prefix(pattern: object) -> str:
    """Return the prefix of all names that match a pattern. Raises UsageError if it is no str."""
    if pattern is None:
        return ""
    if not isinstance(pattern, str):
        raise UsageError(f"a pattern of names must be a str, as 'orders:*', not {pattern!r}")
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


def _this_process() -> str:
    return f"{host_name()}/{os.getpid()}"


class ClientBase(NotCopied):
    """A client without a form: `Client` and `AsyncClient` say how its sessions are begun, and how they are driven."""

    _instead = "make a client in each process, from the same URL; threads may share one"

    def __init__(
        self,
        url: object = None,
        *,
        namespace: str = "",
        owner: str | None = None,
        ttl: float | None = None,
        operation_timeout: float = 1.0,
        retry_for: float = 10.0,
        fairness_count: int = 32,
        wait_for_release: bool = True,
        advice: bool = True,
        on_event: Callable[[LockEvent], object] | None = None,
        event_lines: bool = False,
        record: bool = False,
        store: StoreSource | None = None,
        quorum: Sequence[object] | None = None,
        **unknown: Never,
    ) -> None:
        """Make a client. Its first operation opens the store.

        Args:
            url: the URL of the store; or a redis-py client, a pool of psycopg or an engine of SQLAlchemy, whose server
                and login to use; default: the environment's TENURE_URL, else an embedded lock file of this user.
            namespace: a prefix of all names, so that programs can share a store.
            owner: the name of this client, for people who inspect a lock: up to 512 bytes of UTF-8; default: host and
                process id.
            ttl: the ttl of its locks, in seconds, unless they say another; also in a URL, as ?ttl=10. Default: 30, or
                the store's max_ttl if that is smaller.
            operation_timeout: the longest time, in seconds, that one request to the store may take.
            retry_for: how long, in seconds, an acquisition, or a call of a counter, limit, stock or job, retries while
                the store does not answer or cannot be opened; never beyond its own `timeout`. An acquisition that does
                not wait asks once.
            fairness_count: to how many of its own threads or tasks this client hands a name on in one turn, while
                another client waits for it; 0: to none. It hands on only to those that already waited when the turn
                began: with the grant or, if no other client waited then, when this client learns that one does.
            wait_for_release: False to end a `with` before the reply to its release comes; see `lock`.
            advice: whether to log, once in the life of this client, the two worst things that are wrongly set at the
                store for locks, as far as it shows them when it is connected. `examine` finds more.
            on_event: called with a LockEvent whenever a lock of this client is waited for, acquired, renewed, lost,
                handed over or released, and for what EventKind lists besides, in the thread or event loop where that
                happens: it must not block. Its errors are logged. `listen` adds more.
            event_lines: whether events say which line of the program began an acquisition.
            record: whether this client writes the grants and losses of its names into the store, for `history` and
                `tenure log`: in the background, a second later. Not for names of which there is a new one each time.
            store: the source of your own store, instead of a URL.
            quorum: at least three independent nodes, of which a majority must agree (Redlock), instead of a URL: each
                is a URL, or a redis-py client whose server to use.

        Raises UsageError if an argument is wrong.
        """
        if unknown:
            refuse_unknown(type(self).__name__, unknown, inspect.signature(ClientBase).parameters.keys() - {"unknown"})
        if sum(each is not None for each in (url, store, quorum)) > 1:
            raise UsageError("a client has one store: give only one of `url`, `store` and `quorum`")
        refuse_async_callback(on_event, "on_event")
        self.namespace = check_name(namespace, "a namespace") if namespace else ""
        self._prefix = f"{self.namespace}:" if self.namespace else ""
        self._settings = Settings(
            check_name(owner, "an owner") if owner else _this_process(),
            check_duration(operation_timeout, "operation_timeout", 0.01),
            check_duration(retry_for, "retry_for"),
            self._prefix,
            check_count(fairness_count, "fairness_count"),
            wait_for_release=wait_for_release,
            event_lines=event_lines,
            advice=MOST_ADVICE if advice else 0,
        )
        self._owner_given = owner is not None
        import_executors_at_exit()
        self._source = store or (_source_of(url) if quorum is None else _quorum_of(quorum))
        self._settings.store_title = self._source.title
        able, ttl = self._source.capabilities, self._source.ttl if ttl is None else ttl
        ttl = min(DEFAULT_TTL, able.max_ttl) if ttl is None else check_ttl(ttl, able)
        self._check = Checks(self._source.title, able, ttl, self._prefix)
        self._used = self._closed = self._drained = False
        if record:
            self._check.cells(f"{HISTORIES} (record=True)")
            self._settings.record = True
        if on_event is not None:
            self.listen(on_event)
        self._prepare()
        self._session_mutex = ThreadsRuntime().mutex()
        fork.watch(self)

    @property
    def ttl(self) -> float:
        """The ttl of its locks that say none, in seconds."""
        return self._check.ttl

    def listen(self, listener: Callable[[LockEvent], object]) -> None:
        """Call `listener` with each LockEvent as well, as `on_event`: any number of listeners hear each event.

        Raises UsageError if it is async, or the client was used before: then the listener would hear of ends whose
        beginnings it has not heard.
        """
        refuse_async_callback(listener, "on_event")
        self.listen_within(partial(outside, listener))

    def listen_within(self, listener: Callable[[LockEvent], object]) -> None:
        """Call a listener that is a part of Tenure, and makes no calls of it; internal.

        A signal handler that comes while it runs finds its thread inside Tenure, and so releases in the background: it
        does not wait for a mutex that the listener has locked.
        """
        if self._used:
            raise UsageError("this client was used before: add listeners and metrics when you have made the client")
        self._settings.listeners.append(listener)

    def _prepare(self) -> None:
        """Import what the operations need: a child that is forked in the middle of an import would wait for ever."""
        for module in LATER:
            import_module(module)

    def after_fork_in_child(self) -> None:
        """Start anew in a forked child, which uses nothing of its parent's."""
        sessions, self._used = self._take_sessions(), False
        self._session_mutex = ThreadsRuntime().mutex()  # a thread that the child does not have may hold the old mutex
        if not self._owner_given:
            self._settings.owner = _this_process()
        for session in sessions:
            session.abandon()

    def _take_sessions(self) -> list[Session]:
        """Forget the sessions of this process, and return them."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source.title}>"

    def _refuse_if_ended(self) -> None:
        if self._drained:
            raise Stopped(DRAINED)
        if self._closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

    def _start(self, runtime: Runtime) -> Session:
        self._refuse_if_ended()
        self._used = True
        try:
            store = self._source.make(runtime)
        except OSError as error:  # this process lacks something, such as a descriptor
            raise StoreUnavailable(f"{self._source.title} cannot be used: {error}") from error
        session = Session(runtime, store, self._settings)
        session.face = self
        return session

    def _jobs(self) -> "Coroutine[Any, Any, list[JobView]]":
        from tenure.primitives.jobs import views

        prefix = self._check.cells(JOBS)
        return views(self.session(), prefix)

    def _history(self, name: str) -> "Coroutine[Any, Any, tuple[list[HistoryEntry], datetime]]":
        from tenure.primitives.history import history_of

        self._check.cells(HISTORIES)
        return history_of(self.session(), self._full(name))

    def _adopt(
        self, face: Callable[[Session, "CoreLease", str], F], handle: str, ttl: float | None, timeout: float | None
    ) -> Coroutine[Any, Any, F]:
        (found, title), within = self._read_handle(handle), check_timeout(timeout)

        async def go_on(session: Session, owned: "list[CoreLease]") -> F:
            core = await adopt(session, found, title, ttl=ttl, timeout=within, owned=owned)
            core.by = session.runtime.mark()
            return face(session, core, title)

        return guarded(go_on, self.session())

    def _why(self, name: str, weight: int, owner: str | None) -> Coroutine[Any, Any, Explanation]:
        from tenure.primitives.why import why

        check_number(weight, "weight", EVERYBODY)
        return why(self.session(), self.namespace, check_name(name), weight=weight, owner=owner)

    def _revoke(self, name: str, token: int | None, *, force: bool) -> Coroutine[Any, Any, list[HolderView]]:
        only = _only(token, force=force)
        session, full = self.session(), self._full(name)
        return session.revoke(full, only) if force else session.request_revocation(full)

    def _examine(self, ttl: float | None) -> Coroutine[Any, Any, Report]:
        return self.session().examine(self.ttl if ttl is None else check_duration(ttl, "ttl"))

    def session(self) -> Session:
        """Return the session of this process, and of this event loop; internal."""
        raise NotImplementedError

    def _read_handle(self, handle: str) -> tuple[Handle, str]:
        """Return a handle, and its name without the prefix of the namespace, which it must have."""
        found, prefix = read_handle(handle), self._prefix
        if not found.name.startswith(prefix):
            raise UsageError(
                f"the handle is of {found.name!r}, which is not in the namespace {self.namespace!r} of this client: "
                "use a client with the namespace in which the lease was acquired."
            )
        return found, found.name.removeprefix(prefix)

    def _full(self, name: str) -> str:
        return self._prefix + check_name(name)

    def _page(self, pattern: str | None, rest: object) -> Coroutine[Any, Any, Page]:
        return self.session().page(self._prefix + _literal_prefix(pattern), rest)

    def _matching(self, names: Iterable[str], pattern: str | None) -> Iterator[str]:
        """Yield the names of this client's namespace that match a pattern, without the prefix of the namespace."""
        for name in names:
            short = name.removeprefix(self._prefix)
            if pattern is None or fnmatchcase(short, pattern):
                yield short

    def _with_title(self, report: Report) -> Report:
        report.store = self._source.title
        return report

    def _short(self, view: NameView) -> NameView:
        view.name = view.name.removeprefix(self._prefix)
        return view


def _only(token: int | None, *, force: bool) -> int:
    """Return the token of the holder to revoke; 0: all holders."""
    if token is None:
        return 0
    if not force:
        raise UsageError("a token is only for revoke(force=True): without force all holders are asked, so leave it out")
    return check_number(token, "a token", MOST_TOKENS)


def _source_of(url: object) -> StoreSource:
    from tenure.stores.urls import store_source

    return store_source(url)


def _quorum_of(nodes: Sequence[object]) -> StoreSource:
    from tenure.stores.quorum import quorum_source

    return quorum_source(nodes)
