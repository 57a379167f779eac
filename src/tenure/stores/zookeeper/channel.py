"""The notification channel of a session: an ephemeral node whose data are messages.

A sender appends a message, and compares versions. A watch wakes the receiver, which empties the node and compares
versions, too. The first line counts how often the node was emptied. After a lost reply this count tells whether the
messages were taken out or must still be taken out, so each message is delivered once.

All of this runs in kazoo's thread, from callback to callback.
"""

import logging
from collections.abc import Callable
from functools import partial

from tenure.stores.zookeeper.errors import ANSWERS, UNKNOWN, Code, code_of
from tenure.stores.zookeeper.library import KazooClient, KazooEvent, Result
from tenure.stores.zookeeper.names import CHANNELS, session_name

log = logging.getLogger("tenure")


def path_of(root: str, session: str) -> str:
    """Return the path of a session's channel."""
    return f"{root}/{CHANNELS}/{session}"


def read_box(data: bytes) -> tuple[int, list[str]]:
    """Decode the count and the messages of a channel; 0 and none if another program wrote the data."""
    count, *messages = data.decode("ascii", errors="replace").split("\n")
    return (int(count or "0"), messages) if count.isdecimal() or not count else (0, [])


def write_box(count: int, messages: list[str]) -> bytes:
    """Encode the count and the messages of a channel."""
    return "\n".join([str(count), *messages]).encode("ascii", errors="replace")


class ZooKeeperChannel:
    """The channel of a client's current session."""

    def __init__(self, client: KazooClient, root: str, deliver: Callable[[str], None]) -> None:
        self.session = 0
        """The session for which the channel was created."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when the channel exists, after each connect."""
        self.on_error: Callable[[Exception], None] = lambda _: None
        """Called if the channel can't be created and no later connect will help."""
        self._client = client
        self._root = root
        self._deliver = deliver
        self._made = False
        self._emptied = 0
        self._taking: list[str] | None = None
        """The messages that a request under way takes out."""
        self._busy = False
        """Whether the channel is being read or emptied; only one such request is under way."""
        self._again = False
        """Whether the channel changed meanwhile."""
        self._connection = 0
        """Counts connections, so that replies of an earlier connection are recognised."""

    def connected(self) -> None:
        """Create the channel if the session is new, else read the messages that arrived meanwhile."""
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
        """Ignore replies of the lost connection, and wait for the next one."""
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
            self._make()  # the parent node was just removed
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
                self._make()  # another client removed the channel
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
            return  # the next read tells the outcome
        if result.exception is None:
            self._took(count)
        elif code_of(result.exception) in ANSWERS:
            self._taking = None  # more came meanwhile
            self._again = True
        else:  # kazoo reports this before the loss of the connection; the next read after that tells the outcome
            self._again = False
        self._idle()

    def _idle(self) -> None:
        """End a request, and read again if the channel changed meanwhile."""
        self._busy = False
        if self._again:
            self._again = False
            self._read()

    def _took(self, count: int) -> None:
        """Deliver the messages that were taken out."""
        taken, self._taking, self._emptied = self._taking or [], None, count
        for message in taken:
            try:
                self._deliver(message)
            except Exception:
                log.exception("a message of another client could not be processed")
