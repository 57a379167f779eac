"""A store over a directory of a test, in one thread."""

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest, Granted, Notification, ReleaseRequest, RenewRequest
from tenure.outcome import Outcome
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores.ordered.store import OrderedStore
from tests.ordered.model import ModelDirectory, SharedEnsemble

LONG = micros(1_000.0)
"""Longer than any session is trusted, in microseconds."""


def ask_of(request_id: str = "r1", *, ttl: int = LONG, lock_delay: float = 0.0) -> AcquireRequest:
    """Return a request for the name of these scenes."""
    return AcquireRequest("name", request_id, "", "somebody", ttl, ttl, micros(4.0), lock_delay=micros(lock_delay))


class Scene:
    """A store over a directory of a test."""

    def __init__(self, make: type[ModelDirectory] = ModelDirectory, ensemble: SharedEnsemble | None = None) -> None:
        self.runtime = ThreadsRuntime()
        self.ensemble = ensemble or SharedEnsemble()
        self.directory = make(self.runtime, self.ensemble)
        self.store = OrderedStore(self.runtime, self.directory)
        self.notifications: list[Notification] = []
        self.store._deliver = self.notifications.append
        complete(self.directory.open(self.store, self.until))

    @property
    def until(self) -> float:
        """The end of an operation that begins now."""
        return self.runtime.now() + 5.0

    def hold(self, request: AcquireRequest, within: float = 5.0) -> Granted:
        """Acquire what is free."""
        reply = complete(self.store.acquire(request, self.runtime.now() + within))
        assert isinstance(reply, Granted)
        return reply

    def renewal(self, request: AcquireRequest, granted: Granted) -> RenewRequest:
        """Return a renewal for long."""
        return RenewRequest(request.name, request.request_id, granted.token, LONG, request)

    def release(self, request: AcquireRequest, granted: Granted) -> Outcome:
        """Let go."""
        return complete(self.store.release(ReleaseRequest(request.name, request.request_id, granted.token), self.until))

    def end_the_silent(self, now: float) -> None:
        """Do what the store does in the background if nobody was heard until now."""
        for contender in self.store._contenders.silent(now):
            complete(self.store._remover.remove_expired(contender, self.until))
