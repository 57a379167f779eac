"""The watches of waiters in etcd: each request is woken once when an entry that it watches is removed or changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tenure.contracts.runtime import Runtime
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import EtcdEntry, Keys, after, decoded
from tenure.stores.etcd.session import EtcdSessions
from tenure.stores.etcd.watch_streams import EtcdWatch, EtcdWatches
from tenure.stores.ordered.entries import Entry


@dataclass(slots=True, eq=False)
class EntryWatch:
    """The watch of one request."""

    keys: frozenset[str]
    etcd_watch: EtcdWatch | None = None
    over: bool = False


class EtcdEntryWatches:
    """The watches of one client's requests."""

    def __init__(self, runtime: Runtime, keys: Keys, watches: EtcdWatches, sessions: EtcdSessions) -> None:
        """Begin watches with `watches`, and wake requests at the watcher of `sessions`."""
        self._runtime = runtime
        self._keys = keys
        self._watches = watches
        self._sessions = sessions
        self._mutex = runtime.mutex()
        self._watched: dict[str, EntryWatch] = {}

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Have `woken(request_id)` called once when one of these is removed or changes, or when the watch is lost.

        A single entry is watched by its key. For several entries the whole name is watched, and other events are
        ignored.
        """
        keys = frozenset(self._keys.of(name, entry.key) for entry in entries)
        if entries and self._is_watching(request_id, keys):
            return True
        self._unwatch(request_id)
        if not entries:
            return True
        watch = EntryWatch(keys)
        with self._mutex:
            self._watched[request_id] = watch
        whole = self._keys.of(name, "")
        span = (next(iter(keys)), "") if len(keys) == 1 else (whole, after(whole))
        make = partial(
            EtcdWatch, self._runtime, partial(self._event, request_id, watch), partial(self._wake, request_id, watch)
        )
        revision = min(entry.revision if isinstance(entry, EtcdEntry) else entry.position for entry in entries)
        try:
            etcd_watch = await self._watches.begin(make, span, revision + 1, until)
        except BaseException:
            self._unwatch(request_id)
            raise
        with self._mutex:
            watch.etcd_watch = etcd_watch
        if watch.over:
            etcd_watch.close()
        return True

    def _is_watching(self, request_id: str, keys: frozenset[str]) -> bool:
        """Return whether a request watches exactly these keys already and has seen no event."""
        with self._mutex:
            watch = self._watched.get(request_id)
            return watch is not None and watch.keys == keys and watch.etcd_watch is not None and not watch.over

    def _event(self, request_id: str, watch: EntryWatch, event: JsonObject) -> None:
        if decoded(event["kv"]["key"]) in watch.keys:
            self._wake(request_id, watch)

    def _wake(self, request_id: str, watch: EntryWatch) -> None:
        """Wake the request, once, because a watched key changed or its watch was lost."""
        with self._mutex:
            told, watch.over = watch.over, True
            if self._watched.get(request_id) is watch:
                del self._watched[request_id]
        if watch.etcd_watch is not None:
            watch.etcd_watch.close()
        if not told and self._sessions.watcher is not None:
            self._sessions.watcher.woken(request_id)

    def _unwatch(self, request_id: str) -> None:
        with self._mutex:
            watch = self._watched.pop(request_id, None)
            if watch is not None:
                watch.over = True
        if watch is not None and watch.etcd_watch is not None:
            watch.etcd_watch.close()

    def close(self) -> None:
        """End all watches."""
        for request_id in list(self._watched):
            self._unwatch(request_id)
