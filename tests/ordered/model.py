"""A directory at an ensemble in memory, by the real clock. Its sessions end when a test says so."""

# ruff: noqa: D102 - the contract of a directory says what each method does

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from simulation.ensemble import Ensemble
from tenure.contracts.messages import Page
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.ordered import Detail, Entry, Listing, Record, Watcher
from tenure.stores.ordered.store import CAPABILITIES, OrderedStore

TRUST = 25.0
"""For how long a proof is good, in seconds: longer than what tests ask for."""


class SharedEnsemble(Ensemble):
    """One that threads share."""

    def __init__(self) -> None:
        super().__init__(time.monotonic, lambda name: None)
        self.mutex = threading.RLock()

    def end(self, session: str) -> None:
        with self.mutex:
            super().end(session)


class ModelDirectory:
    """One client's session at it."""

    trust = TRUST
    lasts = 2 * TRUST

    def __init__(self, runtime: Runtime, ensemble: SharedEnsemble) -> None:
        self.proved_at = float("-inf")
        self.lose: dict[str, int] = {}
        """How many replies to what are yet to be lost."""
        self.cut = False
        self._runtime = runtime
        self._ensemble = ensemble
        self._mutex = ensemble.mutex
        self._session = ""
        self._watcher: Watcher | None = None

    def session(self) -> str:
        return self._session

    async def open(self, watcher: Watcher, until: float) -> None:
        self._watcher = watcher
        with self._mutex:
            self._begin()

    def _begin(self) -> None:
        self._session = self._runtime.new_id()
        self.proved_at = self._runtime.now()
        self._ensemble.begin(self._session, 1e9, self._hear)

    def _hear(self, what: str, text: str) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        if what == "lost":
            if text == self._session:
                self._session, self.proved_at = "", float("-inf")
                self._runtime.post(watcher.lost)
        else:
            self._runtime.post(partial(watcher.woken if what == "woken" else watcher.told, text))

    def _reach(self) -> None:
        if self.cut:
            raise StoreUnavailable("the ensemble cannot be reached; ask again")

    def _answer(self, what: str) -> None:
        if self.lose.get(what, 0) > 0:
            self.lose[what] -= 1
            raise OutcomeUnknown("the reply was lost; ask again")

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        self._reach()
        with self._mutex:
            if not self._session:
                self._begin()
            self.proved_at = self._runtime.now()
            joined = self._ensemble.join(self._session, name, record)
        self._answer("join")
        if joined is None:
            raise StoreUnavailable("the session has ended; ask again")
        return joined

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        self._reach()
        with self._mutex:
            there = self._ensemble.withdraw_join(name, request_id)
            if entry is not None:
                self._ensemble.forgive(request_id)
        self._answer("withdraw")
        return there

    async def look(self, name: str, until: float) -> Listing:
        self._reach()
        with self._mutex:
            if self._session:
                self.proved_at = self._runtime.now()
            return self._ensemble.listing(name)

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        self._reach()
        with self._mutex:
            return [self._ensemble.listing(name) for name in names]

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        self._reach()
        with self._mutex:
            done = self._ensemble.change(self._session, name, remove, add, beside)
        self._answer("change")
        return done

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        self._reach()
        with self._mutex:
            written = [self._ensemble.rewrite(*each) for each in texts]
        self._answer("rewrite")
        return written

    async def pass_over(self, name: str, entry: Entry, text: str, until: float) -> bool:
        self._reach()
        with self._mutex:
            return self._ensemble.pass_over(name, entry, text)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        with self._mutex:
            self._ensemble.stir(name, entries)

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        self._reach()
        with self._mutex:
            return self._ensemble.details(name, entries)

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        self._reach()
        with self._mutex:
            return self._ensemble.watch(self._session, name, request_id, entries)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        self._reach()
        with self._mutex:
            return self._ensemble.remains(name, entry)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        self._reach()
        with self._mutex:
            if self._session:
                self.proved_at = self._runtime.now()
            return self._ensemble.check(self._session, entries)

    async def keep_alive(self, until: float) -> None:
        self._reach()

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        with self._mutex:
            return Page(self._ensemble.in_use(prefix))

    async def tell(self, session: str, message: str, until: float) -> None:
        with self._mutex:
            self._ensemble.tell(session, message)

    async def close(self) -> None:
        session, self._watcher = self._session, None
        self._ensemble.end(session)

    def abandon(self) -> None: ...


def model_source(
    ensemble: SharedEnsemble | None = None, made: Callable[[ModelDirectory], None] | None = None
) -> StoreSource:
    """Return a store that stands on such an ensemble; `made` is told of each directory."""
    shared = ensemble or SharedEnsemble()

    def make(runtime: Runtime) -> OrderedStore:
        directory = ModelDirectory(runtime, shared)
        if made is not None:
            made(directory)
        return OrderedStore(runtime, directory)

    return StoreSource("an ensemble in memory", CAPABILITIES, make)
