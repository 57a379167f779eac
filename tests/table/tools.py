"""A name at a grant table, with a clock that a test moves."""

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.outcome import Outcome
from tenure.table.state import NameState
from tenure.table.step import Step

TTL = 1_000_000
INTERVAL = 100_000
TEST_TIMEOUT = 10_000_000


class Name:
    """One name. Requests are called by a letter; each has a channel of that letter."""

    def __init__(self, now: int = 1_000_000_000, wall: int = 5_000) -> None:
        """Start with a name that was never used."""
        self.state = NameState()
        self.now = now
        self.wall = wall
        self.quarantined_until = 0
        self.long_silence = False
        self.deaf: set[str] = set()
        self.requests: dict[str, AcquireRequest] = {}
        self.notifications: list[Notification] = []

    def ask(
        self,
        who: str,
        *,
        ttl: int = TTL,
        weight: int = 1,
        capacity: int = 1,
        waiter_ttl: int = TEST_TIMEOUT,
        lock_delay: int = 0,
        proposal: int = 0,
        wait: bool = True,
        channel: str | None = None,
        fair_after: int = 0,
    ) -> Reply:
        """Ask, or ask again."""
        box = who if channel is None else channel
        times = (ttl, INTERVAL, waiter_ttl)
        made = AcquireRequest("name", who, box, f"owner {who}", *times, weight, capacity, lock_delay, proposal, wait)
        made.fair_after = fair_after
        self.requests[who] = made
        return self.step().acquire(made)

    def win(self, who: str, *, ttl: int = TTL, capacity: int = 1, weight: int = 1, lock_delay: int = 0) -> int:
        """Ask for what must be granted; return the token."""
        reply = self.ask(who, ttl=ttl, capacity=capacity, weight=weight, lock_delay=lock_delay)
        assert isinstance(reply, Granted)
        return reply.token

    def release(self, who: str, token: int | None = None, *, unsure: bool = False, keep: int = 0) -> Outcome:
        """Release."""
        return self.step().release(
            ReleaseRequest("name", who, self.token(who) if token is None else token, unsure, keep)
        )

    def resize(self, before: int, after: int) -> int:
        """Change the capacity."""
        return self.step().resize(before, after)

    def request_revocation(self) -> list[HolderView]:
        """Ask the holders to let go."""
        return self.step().request_revocation()

    def renew(self, who: str, token: int | None = None, ttl: int = TTL) -> RenewReply:
        """Renew."""
        return self.step().renew(RenewRequest("name", who, self.token(who) if token is None else token, ttl))

    def forget(self, quarantine: int) -> None:
        """Forget all, and be in quarantine for a while."""
        self.state = NameState()
        self.quarantined_until = self.now + quarantine

    def unrevoked(self, who: str, token: int) -> bool:
        """Release once more, and tell whether the reply says that the lease was not revoked."""
        release = ReleaseRequest("name", who, token)
        self.step().release(release)
        return release.unrevoked_for > 0

    def take_up(self, who: str, token: int, ttl: int = TTL) -> RenewReply:
        """Renew, and say what the lease came of, so that it can be taken up again."""
        return self.step().renew(RenewRequest("name", who, token, ttl, self.requests[who]))

    def adjust(self, who: str, token: int | None = None, *, weight: int = 0, owner: str = "") -> RenewReply:
        """Change a holding."""
        token = self.token(who) if token is None else token
        return self.step().adjust(AdjustRequest("name", who, token, weight, owner))

    def withdraw(self, who: str, *, unsure: bool = False) -> NotGranted:
        """Leave."""
        return self.step().withdraw(WithdrawRequest("name", who, unsure))

    def revoke(self) -> list[HolderView]:
        """Revoke."""
        return self.step().revoke()

    def view(self) -> NameView:
        """Look."""
        return self.step().view("name")

    def holders(self) -> str:
        """Return who holds the name, in the order of the grants."""
        return "".join(each.request_id for each in self.state.holders)

    def queue(self) -> str:
        """Return who waits, in order."""
        return "".join(each.request.request_id for each in self.state.queue)

    def token(self, who: str) -> int:
        """Return the token by which somebody holds the name, or 0."""
        return next((each.token for each in self.state.holders if each.request_id == who), 0)

    def heard(self, kind: NotificationKind) -> list[tuple[str, int]]:
        """Return who was told so since the last step, with its token or time."""
        return [(each.request_id, each.token or each.after) for each in self.notifications if each.kind is kind]

    def step(self) -> Step:
        """Take a step of your own."""
        step = Step(self.state, self.now, self.wall, lambda channel: channel not in self.deaf, self.quarantined_until)
        step.long_silence = self.long_silence
        self.notifications = step.notifications
        return step
