"""The Redis store: the grant table as Lua scripts, one per operation, at the server that holds the name.

A script is atomic and uses the server's time. Every request is idempotent by its request id, so a request without a
reply may be repeated. An error reply of the server says that nothing was done.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from holdfast.contracts.deadlines import micros, seconds
from holdfast.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Capabilities
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.outcome import Outcome
from holdfast.stores.redis import codec, scripts, wire
from holdfast.stores.redis.deployment import NO_GUARD, Rules
from holdfast.stores.redis.errors import ELSEWHERE, STALE, explain
from holdfast.stores.redis.link import RedisAddress, RedisHearing, RedisLink, RedisReply, ReplyError, Word
from holdfast.stores.redis.messagepack import Packable, pack
from holdfast.stores.redis.names import MARKERS, NODE, Markers, marked_by, name_of, pattern, slot_of, state_key
from holdfast.stores.redis.scripts import Script
from holdfast.stores.redis.topology import OpenLink, Topology
from holdfast.stores.redis.wire import number

log = logging.getLogger("holdfast")

HOPS = 5
"""How many MOVED and ASK replies of a Cluster one request follows."""

MOST_REQUESTS = 1000
"""How many packed kinds of requests are cached. A program has few: they differ by ttl, delay and capacity."""

SCANNED = "990"
"""How many keys one SCAN looks at: with the keys that it finds besides, four times PAGE at most."""

PAGE = 250
"""For how many names one request finds out whether they are in use; few enough to delay other requests only briefly."""

IDLE_CHANNEL = 60.0
"""For how many seconds an unused channel is kept. A waiter sends its request every second or two."""


START = b"0"
"""The cursor of a scan at its beginning, and at its end."""


@dataclass(slots=True)
class _Listing:
    """The position of a listing of names."""

    address: RedisAddress | None = None
    """The master whose keys were scanned last, with the cursor."""
    cursor: bytes = START
    done: set[RedisAddress] = field(default_factory=set[RedisAddress])
    """The masters whose keys were all scanned."""
    seen: set[str] = field(default_factory=set[str])
    """The names that were found: a scan may return a key twice."""


class Wiring(Protocol):
    """The part of a Deployment, real or simulated, that the store uses."""

    rules: Rules

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:
        """Return the topology, which knows which server holds a name."""
        ...

    def link(self, runtime: Runtime, address: RedisAddress, hearing: RedisHearing) -> RedisLink:
        """Return a new link to a server."""
        ...


class _Call(NamedTuple):
    """The arguments of one run of a script on a link."""

    script: Script
    keys: tuple[Word, ...]
    args: tuple[Word, ...]
    until: float


class RedisStore:
    """One client's access to the locks in Redis."""

    def __init__(self, deployment: Wiring, runtime: Runtime) -> None:
        """Prepare the store; nothing is connected yet."""
        rules = self._rules = deployment.rules
        self._runtime = runtime
        self._deployment = deployment
        self._links: dict[RedisAddress, RedisLink] = {}
        self._topology: Topology = deployment.topology(runtime, self._link)
        self._process = ""
        self._channel = runtime.new_id()
        self._deliver: Callable[[Notification], None] = _ignore
        self._hearing = RedisHearing(self._heard, self._missed)
        self._markers = Markers()
        self._seen: dict[Word, bytes] = {}
        """By marker: the latest generation that this client knows of; see `quarantine` in state.lua."""
        self._clustered = self._topology.clustered
        self.capabilities = capabilities_of(rules, clustered=self._clustered)
        self._replicas = rules.replicas
        self._publish = "SPUBLISH" if self._clustered else "PUBLISH"
        self._bound = micros(rules.max_ttl)
        self._client_fields = pack(self._publish, rules.guard, self._bound)
        """The fields of this client that every script receives, packed."""
        self._packed_requests: dict[tuple[Packable, ...], bytes] = {}
        self._channels: dict[str, tuple[RedisAddress, float]] = {}
        """In a Cluster: for each name the server at which the client listens, and the instant of the last use."""
        self._home: RedisAddress | None = None
        """The server at which this client listens, except in a Cluster."""

    # -- life ----------------------------------------------------------------------------------------------

    def identity(self) -> str:
        """Return the run id of the server that replied to the last `inspect`."""
        return self._process

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, and subscribe to this client's channel; in a Cluster each name has its own."""
        self._deliver = deliver
        if self._clustered:
            await self._topology.masters(until)
        else:
            await self._settle(await self._topology.server("", until), until)
        return self._channel

    async def close(self) -> None:
        """Disconnect."""
        self._deliver = _ignore
        for link in list(self._links.values()):
            await link.close()
        await self._topology.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        for link in self._links.values():
            link.abandon()
        self._topology.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse the request."""
        if self._clustered and (request.wait or request.span > 1):
            taken = await self._take_or_listen(request, until)
            if taken is not None:
                return taken
        args = (
            self._pack_request(request),
            request.request_id,
            number(request.proposal),
            b"1" if request.wait else b"0",
        )
        answer = await self._run(scripts.ACQUIRE, request.name, request.request_id, args, until)
        reply = codec.reply_of(answer.value)
        if answer.acknowledged < self._replicas and isinstance(reply, Granted):
            raise OutcomeUnknown(self._too_few(answer))
        return reply

    def _pack_request(self, request: AcquireRequest) -> bytes:
        """Return the packed fields that all requests of a lock have in common, packed once."""
        key = codec.request_fields(request)
        packed = self._packed_requests.get(key)
        if packed is None:
            if len(self._packed_requests) >= MOST_REQUESTS:
                self._packed_requests.clear()
            packed = self._packed_requests[key] = pack(self._publish, self._rules.guard, self._bound, *key)
        return packed

    async def _take_or_listen(self, request: AcquireRequest, until: float) -> Reply | None:
        """Acquire a free name at once, without a subscription; otherwise subscribe to the channel of the name.

        A request that reserves several tokens subscribes first: its holder must hear when the name is contended.
        """
        if request.name not in self._channels and request.span == 1:
            request.wait = False
            try:
                reply = await self.acquire(request, until)
            finally:
                request.wait = True
            if not isinstance(reply, Busy):
                return reply
        await self._listen_for(request.name, until)
        return None

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Grant the requests in their order in one step, up to the first that cannot be granted. Not in a Cluster."""
        keys: list[Word] = [NODE]
        for each in requests:
            state = state_key(each.name)
            keys += [state, state + ":q", f"{state}:t:{each.request_id}"]
        request = requests[0]
        proposal = max(each.proposal for each in requests)
        args = (
            self._pack_request(request),
            number(proposal),
            b"1" if request.wait else b"0",
            *(each.request_id for each in requests),
        )
        answer = await self._call(scripts.ACQUIRE_MANY, request.name, tuple(keys), args, until)
        replies = [codec.reply_of(each) for each in answer.value]
        if answer.acknowledged < self._replicas and any(isinstance(each, Granted) for each in replies):
            raise OutcomeUnknown(self._too_few(answer))
        return replies

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release the lease, and grant the name to the next waiter in the same step."""
        unsure = b"1" if release.unsure else b"0"
        args = (self._client_fields, release.request_id, number(release.token), unsure, number(release.keep))
        answer = await self._run(scripts.RELEASE, release.name, release.request_id, args, until)
        return codec.outcome_of(answer.value)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases in one step; in a Cluster in one step per name."""
        if not self._clustered:
            return await self._renew(renewals, until)
        replies: list[RenewReply] = []
        for renewal in renewals:
            await self._listen_for(renewal.name, until)  # only a lease that lasts should hear of a revocation
            replies += await self._renew([renewal], until)
        return replies

    async def _renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        keys: list[Word] = []
        for renewal in renewals:
            state = state_key(renewal.name)
            # A Cluster that moves a slot refuses a script that names a missing key.
            keys += [state, state + ":q", state if self._clustered else f"{state}:t:{renewal.request_id}"]
        name = renewals[0].name
        channel, owner = codec.channel_and_owner(renewals)
        fields = pack(self._publish, self._rules.guard, self._bound, channel, owner)
        args = (fields, pack([codec.renewal(each, owner) for each in renewals]))
        answer = await self._call(scripts.RENEW, name, (self._marker(name), *keys), args, until)
        if answer.acknowledged < self._replicas:
            raise OutcomeUnknown(self._too_few(answer))
        return [codec.renewed(renewal, each) for renewal, each in zip(renewals, answer.value, strict=True)]

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease without a gap."""
        numbers = number(adjust.token), number(adjust.weight), adjust.owner, number(adjust.raise_to)
        args = (self._client_fields, adjust.request_id, *numbers)
        return codec.adjusted((await self._run(scripts.ADJUST, adjust.name, adjust.request_id, args, until)).value)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from the queue. If the name was granted to it meanwhile, the next waiter gets the name."""
        args = (self._client_fields, withdraw.request_id, b"1" if withdraw.unsure else b"0")
        return codec.left_of((await self._run(scripts.WITHDRAW, withdraw.name, withdraw.request_id, args, until)).value)

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name."""
        answer = await self._run(scripts.INSPECT, name, "", (self._client_fields,), until)
        self._process = answer.run_id.removeprefix(wire.DURABLE).partition(b"@")[0].decode()
        return codec.view_of(name, answer.value)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name."""
        return codec.holders_of(
            (await self._run(scripts.REQUEST_REVOCATION, name, "", (self._client_fields,), until)).value
        )

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        args = (self._client_fields, number(before), number(after))
        return int((await self._run(scripts.RESIZE, name, "", args, until)).value)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only the lease with a token, and notify the holders."""
        args = (self._client_fields, number(token))
        return codec.holders_of((await self._run(scripts.REVOKE, name, "", args, until)).value)

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine of every node; in a Cluster that of every slot whose marker exists."""
        timeout = max(0.0, until - self._runtime.now())
        names = {""}
        if self._clustered:
            names = set[str]()
            for address in await self._topology.masters(until):
                cursor, more = START, True
                while more:
                    cursor, keys = await self._scan(address, cursor, MARKERS, self._runtime.now() + timeout)
                    names |= {marked for key in keys if (marked := marked_by(key))}
                    more = cursor != START
        longest = 0
        for name in sorted(names):
            until = self._runtime.now() + timeout
            answer = await self._run(scripts.END_QUARANTINE, name, "", (self._client_fields,), until)
            longest = max(longest, int(answer.value))
        return seconds(longest)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use, from some keys at one master.

        Each request may take the whole given time; in a Cluster there is one request per name. A master that took over
        meanwhile is scanned from its first key on. A name whose slot is being moved may be missed.
        """
        timeout = max(0.0, until - self._runtime.now())
        so_far = rest if isinstance(rest, _Listing) else _Listing()
        left = [address for address in await self._topology.masters(until) if address not in so_far.done]
        if not left:
            return Page([])
        address = left[0]
        cursor = so_far.cursor if address == so_far.address else START
        cursor, keys = await self._scan(address, cursor, pattern(prefix), until)
        found = sorted({name for key in keys if (name := name_of(key)) is not None} - so_far.seen)
        at_once = 1 if self._clustered else PAGE
        used: list[str] = []
        for first in range(0, len(found), at_once):
            used += await self._in_use(found[first : first + at_once], self._runtime.now() + timeout)
        so_far.seen.update(found)
        so_far.address, so_far.cursor = address, cursor
        if cursor == START:
            so_far.done.add(address)
        return Page(used, so_far if cursor != START or len(left) > 1 else None)

    async def _in_use(self, names: Sequence[str], until: float) -> list[str]:
        """Return which of the names are in use. In a Cluster `names` must contain one name only."""
        name = names[0]
        keys: list[Word] = [self._marker(name) if self._clustered else NODE]
        for each in names:
            state = state_key(each)
            keys += [state, state + ":q"]
        answer = await self._call(scripts.IN_USE, name, tuple(keys), (self._client_fields,), until)
        return [each for each, used in zip(names, answer.value, strict=True) if used]

    async def _scan(self, address: RedisAddress, cursor: bytes, match: str, until: float) -> tuple[bytes, set[str]]:
        """Return the cursor of the next scan, which is START at the end, and some keys."""
        try:
            reply = await self._link(address).command("SCAN", cursor, "MATCH", match, "COUNT", SCANNED, until=until)
        except ReplyError as error:
            raise explain(address, error) from error
        except StoreUnavailable:
            self._topology.doubt(address)
            raise
        return reply[0], {key.decode("utf-8", "replace") for key in reply[1]}

    # -- requests ------------------------------------------------------------------------------------------

    def _run(
        self, script: Script, name: str, request_id: str, args: tuple[Word, ...], until: float
    ) -> Coroutine[Any, Any, RedisReply]:
        """Run a script for one request and one name."""
        state = state_key(name)
        keys = (self._marker(name) if self._clustered else NODE, state, state + ":q", f"{state}:t:{request_id}")
        return self._call(script, name, keys, args, until)

    async def _call(
        self, script: Script, name: str, keys: tuple[Word, ...], args: tuple[Word, ...], until: float
    ) -> RedisReply:
        """Run a script at the server of a name, follow redirections, and remember the server's generation."""
        marker = keys[0]
        seen = self._seen.get(marker, b"")
        address = self._topology.known or await self._find(name, until)
        link = self._links.get(address) or self._link(address)
        args = (args[0], seen, *args[1:])
        try:
            if self._replicas and script.guarded:
                answer = await link.run_replicated(script, keys, args, until, self._replicas)
            else:
                answer = await link.run(script, keys, args, until)
        except ReplyError as error:
            answer = await self._follow(error, address, _Call(script, keys, args, until))
        except StoreUnavailable:
            self._topology.doubt(address)
            raise
        self._take_generation(marker, answer)
        return answer

    def _take_generation(self, marker: Word, answer: RedisReply) -> None:
        """Remember the generation in front of a reply, unless it is older than the known one."""
        match answer.value:
            case [bytes() as generation, value]:
                answer.value = value
                if _number_of(generation) > _number_of(self._seen.get(marker, b"0")):
                    self._seen[marker] = generation
            case _:
                pass

    async def _follow(self, error: ReplyError, address: RedisAddress, call: "_Call") -> RedisReply:
        """Follow MOVED and ASK replies of a Cluster from node to node; raise the meaning of any other error."""
        for _ in range(HOPS):
            if error.code not in ELSEWHERE:
                raise self._refused(address, error) from error
            address = self._topology.moved(error, address)
            link = self._link(address)
            try:
                if error.code == "ASK":
                    return await link.run_after_asking(*call)
                if call.script.guarded and self._replicas:
                    return await link.run_replicated(*call, self._replicas)
                return await link.run(*call)
            except ReplyError as another:
                error = another
            except StoreUnavailable:
                self._topology.doubt(address)
                raise
        raise explain(address, error) from error

    async def _find(self, name: str, until: float) -> RedisAddress:
        """Return the server of a name. If all names have moved to another server, listen there from now on."""
        address = await self._topology.server(name, until)
        if self._home is not None and address != self._home:
            await self._settle(address, until)
        return address

    def _refused(self, address: RedisAddress, error: ReplyError) -> Exception:
        if error.code in STALE:
            self._topology.doubt(address)
        return explain(address, error)

    def _too_few(self, answer: RedisReply) -> str:
        return (
            f"the server granted it, but only {answer.acknowledged} of {self._rules.replicas} replicas acknowledged it "
            "in time, so the grant does not count; check the replicas, or require fewer with replicas="
        )

    def _marker(self, name: str) -> str:
        return self._markers.of(slot_of(name)) if self._clustered else NODE

    def _link(self, address: RedisAddress) -> RedisLink:
        link = self._links.get(address)
        if link is None:
            made = self._deployment.link(self._runtime, address, self._hearing)
            link = self._links.setdefault(address, made)  # another thread may have been faster
        return link

    # -- notifications -------------------------------------------------------------------------------------

    async def _settle(self, address: RedisAddress, until: float) -> None:
        """Listen at the server that holds all names, and no longer at the server that held them before."""
        before, self._home = self._home, address
        channel = f"holdfast:channel:{self._channel}"
        try:
            await self._link(address).listen(channel, until)
        except ReplyError as error:
            self._home = before
            raise self._refused(address, error) from error
        except StoreUnavailable:
            self._home = before
            self._topology.doubt(address)
            raise
        if before is not None:
            log.warning("the Redis master is now %s, and was %s", address, before)
            await self._link(before).ignore(channel)
            self._missed()

    async def _listen_for(self, name: str, until: float) -> None:
        """In a Cluster: listen at the channel of a name, at the name's server; drop channels that are idle."""
        address = await self._topology.server(name, until)
        before = self._channels.get(name)
        self._channels[name] = (address, self._runtime.now())
        if before is not None and before[0] == address:
            return
        try:
            await self._listen_at(address, name, until)
        except BaseException:
            self._channels.pop(name, None)
            raise
        if before is not None:
            await self._link(before[0]).ignore(self._channel_of(name))
        await self._drop_idle_channels()

    async def _listen_at(self, address: RedisAddress, name: str, until: float) -> None:
        for _ in range(HOPS):
            try:
                await self._link(address).listen(self._channel_of(name), until)
                return
            except ReplyError as error:
                if error.code not in ELSEWHERE:
                    raise self._refused(address, error) from error
                address = self._topology.moved(error, address)
                self._channels[name] = (address, self._runtime.now())
            except StoreUnavailable:
                self._topology.doubt(address)
                raise
        raise StoreUnavailable(f"the cluster redirects the subscription for {name!r} again and again; see CLUSTER INFO")

    async def _drop_idle_channels(self) -> None:
        now = self._runtime.now()
        for name, (address, used_at) in list(self._channels.items()):
            if now - used_at > IDLE_CHANNEL:
                del self._channels[name]
                await self._link(address).ignore(self._channel_of(name))

    def _channel_of(self, name: str) -> str:
        return f"{state_key(name)}:channel:{self._channel}"

    def _heard(self, payload: bytes) -> None:
        notification = codec.notification_of(self._channel, payload)
        if notification is not None:
            self._deliver(notification)

    def _missed(self) -> None:
        self._deliver(Notification(self._channel, NotificationKind.GAP, ""))


def capabilities_of(rules: Rules, *, clustered: bool = False) -> Capabilities:
    """Return the capabilities of a store with these rules."""
    return Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        local=False,
        pushes_count=rules.replicas == 0,
        max_ttl=float("inf") if rules.guard == NO_GUARD else rules.max_ttl,
        multi_acquire=not clustered,  # the names of a Cluster lie on several nodes
    )


def _number_of(generation: bytes) -> int:
    """Return the number that a generation begins with."""
    return int(generation.partition(b" ")[0])


def _ignore(notification: Notification) -> None:
    """Ignore a notification, because the store is not open."""
