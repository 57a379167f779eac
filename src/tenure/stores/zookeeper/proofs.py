"""The rules for how long a session certainly lives.

The leader restarts a session's timeout whenever it hears of the session. A follower tells the leader which sessions it
heard of only with the leader's next ping; if the follower dies before, the leader never hears of them. So a reply that
came through the leader proves two things: the session is alive there, and the leader knows what this follower heard
some time before. The session lives for its timeout from *then*. Contacts are at most a sixth of the timeout apart
(`keep_alive`), and a ping takes no longer than a quarter of it; so the trust is half of the timeout, less what clocks
may differ by. A reply that a server gives by itself proves nothing: the server may be cut off from the others.
"""

from collections import deque

PASSED_ON = 1.5
"""How many seconds it takes at most until a follower has told the leader of the sessions it heard of (default: 1)."""

TRUSTED = 0.49
"""The trust, as a part of the session's timeout."""

NEVER = float("-inf")


class Proofs:
    """What a client knows of its session's life. All instants are local ones."""

    def __init__(self, timeout: float) -> None:
        """Begin without a session. `timeout` is the session timeout that the client will ask for."""
        self.proved_at = NEVER
        """The session lives for `trust` from this instant."""
        self._timeout = timeout
        self._sure = NEVER
        """The leader has certainly heard of the session at this instant or later."""
        self._contacts: deque[float] = deque()
        """When the connected server heard of the session, as far as the leader may not know of it yet."""

    @property
    def trust(self) -> float:
        """For how many seconds after a proof the nodes of the session certainly stay."""
        return TRUSTED * self._timeout

    def begin(self, timeout: float, opened_at: float) -> None:
        """Record a new session."""
        self.end()
        self._timeout = timeout
        self.resume(opened_at)

    def resume(self, opened_at: float) -> None:
        """Record a new connection. The server asked the leader about the session, so the leader has heard of it."""
        self._contacts.clear()
        self._sure = opened_at

    def suspend(self) -> None:
        """Record the loss of the connection: the server may have died before it told the leader."""
        self._contacts.clear()

    def end(self) -> None:
        """Record the end of the session."""
        self._contacts.clear()
        self._sure = self.proved_at = NEVER

    def contact(self, sent: float) -> None:
        """Record that the server heard of the session."""
        if not self._contacts or sent > self._contacts[-1] + PASSED_ON / 4:
            self._contacts.append(sent)

    def prove(self, sent: float) -> None:
        """Record that the leader counts the session as alive, and knows what the server heard some time before."""
        passed_on = sent - min(PASSED_ON, self._timeout / 4)
        while self._contacts and self._contacts[0] <= passed_on:
            self._sure = max(self._sure, self._contacts.popleft())
        self.proved_at = max(self.proved_at, min(sent, self._sure + self._timeout / 2))
        self.contact(sent)
