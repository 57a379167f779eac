"""One watch: a key or a range, from a revision on, on a stream of its own."""

from collections.abc import Callable
from typing import cast

from holdfast.errors import OutcomeUnknown, StoreError
from holdfast.runtimes.runtime import Runtime
from holdfast.stores.etcd import requests
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.link import Hearing, Said, Stream


class Watching:
    """A watch from its beginning to its end. It tells its end once, unless it was closed."""

    def __init__(self, runtime: Runtime, on_event: Callable[[Said], None], on_end: Callable[[], None]) -> None:
        """Prepare; nothing is watched yet."""
        self.over = False
        self.refusal = ""
        """Why there is no watch, in the words of the server."""
        self._on_event = on_event
        self._on_end = on_end
        self._mutex = runtime.mutex()
        self._answered = runtime.event()
        self._begun = False
        self._stream: Stream | None = None

    async def open(self, gateway: Gateway, span: tuple[str, str], revision: int, until: float) -> None:
        """Watch a key, or from it to the end of a range. Raises StoreError; then it is over, and tells nothing."""
        body = requests.watch(*span, revision)
        try:
            stream = await gateway.stream("watch", body, Hearing(self._hear, self._lose), until)
            with self._mutex:
                self._stream = stream
            if self.over:
                stream.close()
            await self._answered.wait(until)
            self._raise_refusal()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it; nothing is told any more."""
        with self._mutex:
            self.over, stream = True, self._stream
        if stream is not None:
            stream.close()

    def is_denied(self) -> bool:
        """Tell whether the server refused it to this user."""
        return "permission denied" in self.refusal or "auth" in self.refusal

    def _hear(self, said: Said) -> None:
        result = cast("Said", said.get("result", {}))
        if not result or result.get("canceled"):
            self.refusal = str(result.get("cancel_reason") or said.get("error") or "it was cancelled")
            self._lose()
            return
        if result.get("created"):
            self._begun = True
            self._answered.set()
        for event in result.get("events", []):
            if not self.over:
                self._on_event(event)

    def _lose(self) -> None:
        with self._mutex:
            told, self.over = self.over, True
            stream = self._stream
        if stream is not None:
            stream.close()
        if not told and self._begun:
            self._on_end()
        self.refusal = self.refusal or "the connection was lost"
        self._answered.set()

    def _raise_refusal(self) -> None:
        """Raise why there is no watch, if there never was one; one that ended since has told that."""
        if self._begun:
            return
        if self.is_denied():
            raise StoreError(
                "etcd denies this user a watch; grant its role READWRITE on the whole prefix of the URL, or check the "
                "user and the password"
            )
        raise OutcomeUnknown(f"etcd did not begin a watch ({self.refusal or 'timed out'}); ask again")


async def begin_watch(
    watching: Callable[[], Watching], gateway: Gateway, span: tuple[str, str], revision: int, until: float
) -> Watching:
    """Begin a watch; once more if a user is denied it, for that may be for a token that is not known any more."""
    first = watching()
    try:
        await first.open(gateway, span, revision, until)
        return first
    except StoreError:
        if not (first.is_denied() and gateway.forget_token()):
            raise
    second = watching()
    await second.open(gateway, span, revision, until)
    return second
