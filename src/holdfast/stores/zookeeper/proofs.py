"""For how long a session certainly lives.

Its time begins anew whenever the leader hears of it. But a follower only passes on what it heard of sessions with the
leader's next ping; if it dies before, that is lost. So an answer that came through the leader proves that the session
is alive there, and that what this follower heard a while before was passed on: it lives for its timeout from *then*.
Contacts are at most a sixth of the timeout apart (`keep_alive`), and a ping takes no longer than a quarter of it; so
the trust is half of the timeout, less what clocks may differ by. What a server answers by itself proves nothing: it
may be cut off from the others.
"""

from collections import deque

PASSED_ON = 1.5
"""After how many seconds a follower has certainly passed on to the leader what it heard of sessions (by default: 1)."""

TRUSTED = 0.49
"""How much of the session's timeout is the trust."""

NEVER = float("-inf")


class Proofs:
    """What is known of the session's life. All instants are local ones."""

    def __init__(self, timeout: float) -> None:
        """Know nothing yet, but for what timeout will be asked."""
        self.proved_at = NEVER
        """The session lives for the trust from this instant."""
        self._timeout = timeout
        self._sure = NEVER
        """The leader has certainly heard of the session at this instant or later."""
        self._contacts: deque[float] = deque()
        """When the server that we are connected to heard of us, as far as the leader may not know it yet."""

    @property
    def trust(self) -> float:
        """For how many seconds what the session has is certainly kept, from a proof."""
        return TRUSTED * self._timeout

    def begin(self, timeout: float, opened_at: float) -> None:
        """Note a new session."""
        self.end()
        self._timeout = timeout
        self.resume(opened_at)

    def resume(self, opened_at: float) -> None:
        """Note that we connected: for that, the leader was asked about our session, and so has heard of it."""
        self._contacts.clear()
        self._sure = opened_at

    def suspend(self) -> None:
        """Note that the connection is lost: the server may have died with what it heard."""
        self._contacts.clear()

    def end(self) -> None:
        """Note that the session has ended."""
        self._contacts.clear()
        self._sure = self.proved_at = NEVER

    def contact(self, sent: float) -> None:
        """Note that the server has heard of us."""
        if not self._contacts or sent > self._contacts[-1] + PASSED_ON / 4:
            self._contacts.append(sent)

    def prove(self, sent: float) -> None:
        """Note that the leader counts our session as alive, and knows what our server heard a while before."""
        passed_on = sent - min(PASSED_ON, self._timeout / 4)
        while self._contacts and self._contacts[0] <= passed_on:
            self._sure = max(self._sure, self._contacts.popleft())
        self.proved_at = max(self.proved_at, min(sent, self._sure + self._timeout / 2))
        self.contact(sent)
