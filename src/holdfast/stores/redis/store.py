"""The Redis store: the grant table as Lua, one script an operation, at whichever server holds the name.

What a script does is atomic and takes place at the server's time. Every request is idempotent by its request id, so
whatever was not answered may simply be asked again; a server's error reply says that nothing was done.
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
"""How often one request follows a cluster's MOVED and ASK."""

MOST_REQUESTS = 1000
"""How many kinds of requests are kept packed. A program has few: they differ by ttl, delay and capacity."""

SCANNED = "990"
"""How many keys one request looks for names in: with those that it finds beside them, four times PAGE at most."""

PAGE = 250
"""Of how many names one request asks whether they are in use: few enough that it holds up nobody for long."""

IDLE_CHANNEL = 60.0
"""For how many seconds a channel that nobody seems to need is kept. Who waits asks every second or two."""


START = b"0"
"""The cursor of a scan at its beginning, and at its end."""


@dataclass(slots=True)
class _Listing:
    """How far a listing of names has come."""

    address: RedisAddress | None = None
    """The master that was looked at last, and where its scan goes on."""
    cursor: bytes = START
    done: set[RedisAddress] = field(default_factory=set[RedisAddress])
    """The masters all of whose keys were looked at."""
    seen: set[str] = field(default_factory=set[str])
    """The names that were looked at: a scan may show a key twice."""


class Wiring(Protocol):
    """A Deployment, real or simulated, as the store sees it."""

    rules: Rules

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:
        """Make what knows which server holds a name."""
        ...

    def link(self, runtime: Runtime, address: RedisAddress, hearing: RedisHearing) -> RedisLink:
        """Make a link to a server."""
        ...


class _Call(NamedTuple):
    """What a link is asked to run."""

    script: Script
    keys: tuple[Word, ...]
    args: tuple[Word, ...]
    until: float


class RedisStore:
    """One client's access to the locks in Redis."""

    def __init__(self, deployment: Wiring, runtime: Runtime) -> None:
        """Prepare; nothing is connected yet."""
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
        self._client_words = pack(self._publish, rules.guard, self._bound)
        """What every script is told of this client."""
        self._packed_requests: dict[tuple[Packable, ...], bytes] = {}
        self._channels: dict[str, tuple[RedisAddress, float]] = {}
        """In a Cluster: the names that are waited for, where we listen for them, and when that was last needed."""
        self._home: RedisAddress | None = None
        """Where this client listens, unless in a Cluster."""

    # -- life ----------------------------------------------------------------------------------------------

    def identity(self) -> str:
        """Return the run id of the server that was looked at last."""
        return self._process

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, and subscribe to this client's channel; in a Cluster that is done for each name."""
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
        """Grant, queue or refuse."""
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
        """Pack what is the same in all requests of a lock, once."""
        key = codec.request_words(request)
        words = self._packed_requests.get(key)
        if words is None:
            if len(self._packed_requests) >= MOST_REQUESTS:
                self._packed_requests.clear()
            words = self._packed_requests[key] = pack(self._publish, self._rules.guard, self._bound, *key)
        return words

    async def _take_or_listen(self, request: AcquireRequest, until: float) -> Reply | None:
        """Subscribe to the channel of a name before waiting for it, but not before taking it if it is free.

        Unless it is to be kept or handed on in this process: then we must hear when somebody waits.
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
        """Grant one after another in one step, up to the first that is not granted. Not in a Cluster."""
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
        """Let go, and hand over in the same step."""
        unsure = b"1" if release.unsure else b"0"
        args = (self._client_words, release.request_id, number(release.token), unsure, number(release.keep))
        answer = await self._run(scripts.RELEASE, release.name, release.request_id, args, until)
        return codec.outcome_of(answer.value)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch: in one step, or in a Cluster in one for each name."""
        if not self._clustered:
            return await self._renew(renewals, until)
        replies: list[RenewReply] = []
        for renewal in renewals:
            await self._listen_for(renewal.name, until)  # from now on it is worth being told of a revocation
            replies += await self._renew([renewal], until)
        return replies

    async def _renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        keys: list[Word] = []
        for renewal in renewals:
            state = state_key(renewal.name)
            # While a slot of a Cluster moves, a script that names a key which is not there is refused.
            keys += [state, state + ":q", state if self._clustered else f"{state}:t:{renewal.request_id}"]
        name = renewals[0].name
        channel, owner = codec.renewal_words(renewals)
        words = pack(self._publish, self._rules.guard, self._bound, channel, owner)
        args = (words, pack([codec.renewal(each, owner) for each in renewals]))
        answer = await self._call(scripts.RENEW, name, (self._marker(name), *keys), args, until)
        if answer.acknowledged < self._replicas:
            raise OutcomeUnknown(self._too_few(answer))
        return [codec.renewed(renewal, each) for renewal, each in zip(renewals, answer.value, strict=True)]

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a holding without a gap."""
        numbers = number(adjust.token), number(adjust.weight), adjust.owner, number(adjust.raise_to)
        args = (self._client_words, adjust.request_id, *numbers)
        return codec.adjusted((await self._run(scripts.ADJUST, adjust.name, adjust.request_id, args, until)).value)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up waiting; pass on a grant that crossed this."""
        args = (self._client_words, withdraw.request_id, b"1" if withdraw.unsure else b"0")
        return codec.left_of((await self._run(scripts.WITHDRAW, withdraw.name, withdraw.request_id, args, until)).value)

    async def inspect(self, name: str, until: float) -> NameView:
        """Show one name."""
        answer = await self._run(scripts.INSPECT, name, "", (self._client_words,), until)
        self._process = answer.run_id.removeprefix(wire.DURABLE).partition(b"@")[0].decode()
        return codec.view_of(name, answer.value)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Ask the holders of a name to let go."""
        return codec.holders_of(
            (await self._run(scripts.REQUEST_REVOCATION, name, "", (self._client_words,), until)).value
        )

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        args = (self._client_words, number(before), number(after))
        return int((await self._run(scripts.RESIZE, name, "", args, until)).value)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holders, or from that of a token, and tell them."""
        args = (self._client_words, number(token))
        return codec.holders_of((await self._run(scripts.REVOKE, name, "", args, until)).value)

    async def end_quarantine(self, until: float) -> float:
        """Have every node grant again at once; in a Cluster, where each slot has a marker, all that were ever used."""
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
            answer = await self._run(scripts.END_QUARANTINE, name, "", (self._client_words,), until)
            longest = max(longest, int(answer.value))
        return seconds(longest)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use: some keys of ours at one master are looked at.

        Each of its requests has the time given: in a Cluster there is one for each name. A master that took over
        meanwhile is looked at from its first key on. A name whose slot is being moved may be missed.
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
        """Return which of some names, in a Cluster of one, are held or waited for."""
        name = names[0]
        keys: list[Word] = [self._marker(name) if self._clustered else NODE]
        for each in names:
            state = state_key(each)
            keys += [state, state + ":q"]
        answer = await self._call(scripts.IN_USE, name, tuple(keys), (self._client_words,), until)
        return [each for each, used in zip(names, answer.value, strict=True) if used]

    async def _scan(self, address: RedisAddress, cursor: bytes, match: str, until: float) -> tuple[bytes, set[str]]:
        """Return where the next scan goes on, START at the end, and some keys."""
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
        """Run a script about one request for one name."""
        state = state_key(name)
        keys = (self._marker(name) if self._clustered else NODE, state, state + ":q", f"{state}:t:{request_id}")
        return self._call(script, name, keys, args, until)

    async def _call(
        self, script: Script, name: str, keys: tuple[Word, ...], args: tuple[Word, ...], until: float
    ) -> RedisReply:
        """Run a script where the name is held, follow it if it moved, and note which process answered."""
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
        """Remember the generation that stands before a reply, unless the reply is older than what we know."""
        match answer.value:
            case [bytes() as generation, value]:
                answer.value = value
                if _number_of(generation) > _number_of(self._seen.get(marker, b"0")):
                    self._seen[marker] = generation
            case _:
                pass

    async def _follow(self, error: ReplyError, address: RedisAddress, call: "_Call") -> RedisReply:
        """Go where a MOVED or an ASK of a cluster says, and on from there if need be; else say what the error means."""
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
        """Ask the topology; if all names have moved to another server, listen there from now on."""
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
            f"the server has it, but {answer.acknowledged} of {self._rules.replicas} replicas acknowledged it in time: "
            "it does not count; check the replicas, or ask for fewer with replicas="
        )

    def _marker(self, name: str) -> str:
        return self._markers.of(slot_of(name)) if self._clustered else NODE

    def _link(self, address: RedisAddress) -> RedisLink:
        link = self._links.get(address)
        if link is None:
            made = self._deployment.link(self._runtime, address, self._hearing)
            link = self._links.setdefault(address, made)  # another thread may have been faster
        return link

    # -- pushes --------------------------------------------------------------------------------------------

    async def _settle(self, address: RedisAddress, until: float) -> None:
        """Listen at the server that holds all names; at another one no more, if it was another before."""
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
        """In a Cluster: listen at the channel of a name, where the name is; and drop channels no longer needed."""
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
        raise StoreUnavailable(f"the cluster sends us from node to node for {name!r}; see CLUSTER INFO")

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
    """Return what the store can do under these rules."""
    return Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        local=False,
        pushes_count=rules.replicas == 0,
        max_ttl=float("inf") if rules.guard == NO_GUARD else rules.max_ttl,
        multi_acquire=not clustered,  # whose names lie on several nodes
    )


def _number_of(generation: bytes) -> int:
    """Return the number that a generation begins with."""
    return int(generation.partition(b" ")[0])


def _ignore(notification: Notification) -> None:
    """Hear nothing: the store is not open."""
