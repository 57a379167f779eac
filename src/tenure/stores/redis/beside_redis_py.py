"""The Redis store whose holders also have the key of redis-py's Lock, which keeps out programs that still use that.

A holder has two things: the name in the grant table, and the plain key that is called like the name. The value of the
key is the id of the request, so a key is renewed and deleted by its own lease alone. docs/adr/0021-beside-redis-py.md
says why this needs no change of the grant table:

*   The name comes first, then the key. A waiter that has the name looks again when the key of another ends, or soon.
*   A grant counts when its request has both, so a grant that is pushed is confirmed by a request (`pushes_count`).
*   The key is renewed before the name, and given back before it. A lease without its key is refused, and so is lost.
"""

# ruff: noqa: D102 - the contracts say what these methods do

from collections.abc import Callable, Sequence
from dataclasses import replace

from tenure.contracts.messages import (
    AcquireRequest,
    Busy,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Queued,
    ReleaseRequest,
    RenewReplies,
    RenewRequest,
    Reply,
    WaiterView,
    Withdrawn,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.errors import StoreError
from tenure.outcome import Outcome
from tenure.stores.redis import scripts
from tenure.stores.redis.links.wire import number
from tenure.stores.redis.names import state_key
from tenure.stores.redis.servers import Wiring
from tenure.stores.redis.store import RedisStore

POLL = 50_000
"""How often a waiter looks at the key of another, in microseconds: redis-py tells nobody of a release."""

MINE = "tenure:"
"""What the values of our keys begin with."""

OTHERS = "a program with redis-py's Lock"
"""The owner of a key that is not ours, as people see it."""

MOST_GIVEN = 1000
"""How many releases a client remembers, for their repetitions."""

DONE, WITHDRAWN, GONE = 0, -1, -2
ENDLESS = 2**31
"""The codes that plain_key.lua returns; others are milliseconds."""

LOST = "its key, which keeps out programs with redis-py's Lock, was deleted or taken by another program"


class RedisStoreBesideRedisPy(RedisStore):
    """One client's access to the locks in Redis, each of which excludes redis-py's Lock of the same name."""

    def __init__(self, deployment: Wiring, runtime: Runtime) -> None:
        super().__init__(deployment, runtime)
        self.capabilities = capabilities_beside(self.capabilities)
        self._given: set[str] = set()
        """The requests whose keys were given back lately: a repeated release finds none, and is none the worse."""

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        if self._clustered and set("{}%") & set(request.name):
            raise StoreError(
                f"{request.name!r} and redis-py's key of that name may lie in two slots of the Cluster: use a name "
                "without braces and percent signs, or leave out also=."
            )
        reply = await super().acquire(request, until)
        if not isinstance(reply, Granted):
            return reply
        lasts = request.ttl + request.lock_delay
        ((code, _),) = await self._keys("take", [(request.name, request.request_id, lasts)], until)
        if code == DONE:
            return reply
        if code == WITHDRAWN:
            return Withdrawn()
        retry_in = min(code * 1000, POLL)
        return Queued(reply.token, retry_in, 0) if request.wait else Busy(retry_in, (OTHERS,), stands=True)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        keys = [
            (each.name, each.request_id, each.ttl + (each.request.lock_delay if each.request else 0))
            for each in renewals
        ]
        codes = await self._keys("keep", keys, until)
        kept = [renewal for renewal, (code, _) in zip(renewals, codes, strict=True) if code == DONE]
        replies = iter(await super().renew(kept, until) if kept else [])
        return [
            next(replies) if code == DONE else _lost(renewal, code)
            for renewal, (code, _) in zip(renewals, codes, strict=True)
        ]

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Give the key back, then release the lease, and grant the name to the next waiter in the same step."""
        given = (release.name, release.request_id, release.keep)
        ((code, _),) = await self._keys("give", [given], until)
        if code == DONE:
            if len(self._given) >= MOST_GIVEN:
                self._given.clear()
            self._given.add(release.request_id)
        outcome = await super().release(release, until)
        if release.unsure:  # a late request may have taken the key again, before the tombstone was there
            await self._keys("give", [given], until)
        kept = release.request_id in self._given or outcome is not Outcome.RELEASED
        return outcome if kept else _outcome_of(code)

    def send_release(
        self,
        request: AcquireRequest,  # noqa: ARG002
        release: ReleaseRequest,  # noqa: ARG002
        until: float,  # noqa: ARG002
        told: Callable[[Outcome | None], None],  # noqa: ARG002
    ) -> bool:
        return False  # it takes more than one request

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from the queue; it leaves a tombstone, after which no late request takes the key."""
        not_granted = await super().withdraw(withdraw, until)
        ((code, value),) = await self._keys("give", [(withdraw.name, withdraw.request_id, 0)], until)
        if code > 0 and not value.startswith(MINE):
            not_granted.holders = (OTHERS,)
        return not_granted

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        ((_, value),) = await self._keys("look", [(name, "", 0)], until)
        holders = await super().revoke(name, until, token)
        if holders and value.startswith(MINE):
            await self._keys("give", [(name, value.removeprefix(MINE), 0)], until)
        return holders

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name. If its key is another's, whoever has the name in the grant table waits."""
        view = await super().inspect(name, until)
        ((code, value),) = await self._keys("look", [(name, "", 0)], until)
        if code > 0 and not value.startswith(MINE):
            view.waiters[:0] = [WaiterView(each.owner, each.weight, each.held_for, alive=True) for each in view.holders]
            lasts = float("inf") if code == ENDLESS else code / 1000
            view.holders = [HolderView(OTHERS, 0, 1, 0.0, lasts, lasts)]
        return view

    async def _keys(self, doing: str, leases: Sequence[tuple[str, str, int]], until: float) -> list[tuple[int, str]]:
        """Run plain_key.lua for leases, each {name, request id, microseconds}; return its codes and the values."""
        if self._clustered and len(leases) > 1:
            return [(await self._keys(doing, [each], until))[0] for each in leases]
        keys = [key for name, request_id, _ in leases for key in (name, f"{state_key(name)}:t:{request_id}")]
        values = [word for _, id_, lasts in leases for word in (MINE + id_, number(-(-lasts // 1000)))]
        name = leases[0][0]
        args = (self._client_fields, doing, *values)
        answer = await self._runner.call(scripts.PLAIN_KEY, name, (self._runner.marker(name), *keys), args, until)
        if doing in {"take", "keep"}:
            self._require_replicas(answer)
        return [(code, value.decode("utf-8", "replace")) for code, value in answer.value]


def capabilities_beside(able: Capabilities) -> Capabilities:
    """Return what is left of the capabilities of a Redis store: redis-py's Lock has one holder, and no queue.

    Without spans a client hands no lease on by itself, so that redis-py's programs may get the key in between.
    """
    return replace(able, weights=False, pushes_count=False, span=1, multi_acquire=False, hands_over=False)


def _outcome_of(code: int) -> Outcome:
    return Outcome.EXPIRED if code == GONE else Outcome.TAKEN_OVER


def _lost(renewal: RenewRequest, code: int) -> Outcome:
    renewal.refused_because = LOST
    return _outcome_of(code)
