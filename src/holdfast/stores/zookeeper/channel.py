"""Where a session gets its messages: a node of its own, which vanishes with it.

Its data is a list of messages. A sender appends one by comparing versions; the receiver, whom a watch wakes, empties it
likewise. The first line counts how often it was emptied: after a lost reply that tells whether the messages which we
took are taken, or still to be taken. So each is delivered once.

All of this runs in kazoo's thread, from callback to callback.
"""

import logging
from collections.abc import Callable
from functools import partial

from holdfast.stores.zookeeper.errors import ANSWERS, UNKNOWN, Code, code_of
from holdfast.stores.zookeeper.library import KazooClient, KazooEvent, Result
from holdfast.stores.zookeeper.names import CHANNELS, session_name

log = logging.getLogger("holdfast")


def path_of(root: str, session: str) -> str:
    """Return the channel of a session."""
    return f"{root}/{CHANNELS}/{session}"


def read_box(data: bytes) -> tuple[int, list[str]]:
    """Read how often a channel was emptied, and what is in it: nothing, if none of us wrote that."""
    count, *messages = data.decode("ascii", errors="replace").split("\n")
    return (int(count or "0"), messages) if count.isdecimal() or not count else (0, [])


def write_box(count: int, messages: list[str]) -> bytes:
    """Write it."""
    return "\n".join([str(count), *messages]).encode("ascii", errors="replace")


class ZooKeeperChannel:
    """The channel of whatever session a client has."""

    def __init__(self, client: KazooClient, root: str, deliver: Callable[[str], None]) -> None:
        """Prepare."""
        self.session = 0
        """The session that it was made for."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when it is there, after each connecting."""
        self.on_error: Callable[[Exception], None] = lambda _: None
        """Called if it can't be made, and no connecting will help."""
        self._client = client
        self._root = root
        self._deliver = deliver
        self._made = False
        self._emptied = 0
        self._taking: list[str] | None = None
        """What we are about to take out."""
        self._busy = False
        """Whether it is being read or emptied: one at a time."""
        self._again = False
        """Whether it changed meanwhile."""
        self._connection = 0
        """Counts connections, so that what was asked over an earlier one is known."""

    def connected(self) -> None:
        """Make it if the session is a new one; else look what came meanwhile."""
        found = self._client.client_id
        session = found[0] if found is not None else 0
        self._connection += 1
        self._busy = self._again = False
        if session != self.session:
            self.session, self._made, self._emptied, self._taking = session, False, 0, None
        if self._made:
            self._read()
            self.on_ready()
        else:
            self._make()

    def suspended(self) -> None:
        """Wait for the next connection."""
        self._connection += 1

    @property
    def _path(self) -> str:
        return path_of(self._root, session_name(self.session))

    def _make(self) -> None:
        result = self._client.create_async(self._path, write_box(self._emptied, []), ephemeral=True, makepath=True)
        result.rawlink(partial(self._on_made, self._connection))

    def _on_made(self, connection: int, result: Result) -> None:
        if connection != self._connection:
            return
        error = result.exception
        if error is not None and code_of(error) == Code.NO_NODE:
            self._make()  # its parent was just removed
        elif error is not None and code_of(error) != Code.NODE_EXISTS:
            if code_of(error) not in UNKNOWN:
                self.on_error(error)
        else:
            ready, self._made = not self._made, True
            self._read()
            if ready:
                self.on_ready()

    def _changed(self, event: KazooEvent) -> None:
        if event.path is not None:
            self._read()

    def _read(self) -> None:
        if self._busy:
            self._again = True
            return
        self._busy = True
        self._client.get_async(self._path, self._changed).rawlink(partial(self._on_read, self._connection))

    def _on_read(self, connection: int, result: Result) -> None:
        if connection != self._connection:
            return
        if result.exception is not None:
            self._busy = False
            if code_of(result.exception) == Code.NO_NODE:
                self._make()  # somebody removed it
            return
        data, stat = result.value
        count, messages = read_box(data)
        if self._taking is not None and count > self._emptied:
            self._took(count)
        self._taking = None
        if messages:
            self._taking = messages
            result = self._client.set_async(self._path, write_box(count + 1, []), stat.version)
            result.rawlink(partial(self._on_emptied, connection, count + 1))
        else:
            self._idle()

    def _on_emptied(self, connection: int, count: int, result: Result) -> None:
        if connection != self._connection:
            return  # the next look tells what became of it
        if result.exception is None:
            self._took(count)
        elif code_of(result.exception) in ANSWERS:
            self._taking = None  # more came meanwhile
            self._again = True
        else:  # kazoo tells this before it tells that the connection is lost: again, the next look tells
            self._again = False
        self._idle()

    def _idle(self) -> None:
        """Read again if it changed meanwhile."""
        self._busy = False
        if self._again:
            self._again = False
            self._read()

    def _took(self, count: int) -> None:
        """Deliver what was taken out."""
        taken, self._taking, self._emptied = self._taking or [], None, count
        for message in taken:
            try:
                self._deliver(message)
            except Exception:
                log.exception("a message could not be taken")
