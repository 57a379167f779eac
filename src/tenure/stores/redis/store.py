"""The Redis store: the grant table as Lua scripts, one per operation, at the server that holds the name.

A script is atomic and uses the server's time. Every request is idempotent by its request id, so a request without a
reply may be repeated. An error reply of the server says that nothing was done.
"""

from collections.abc import Callable, Sequence

from tenure.contracts.cells import Addition, Cell
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import (
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
from tenure.contracts.runtime import Event, Runtime
from tenure.contracts.store import Capabilities
from tenure.errors import OutcomeUnknown
from tenure.outcome import Outcome
from tenure.stores.redis.channels import RedisChannels
from tenure.stores.redis.key_scans import KeyScans
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisHearing, RedisReply, Word
from tenure.stores.redis.links.wire import RequestTemplate, number
from tenure.stores.redis.lua import codec, scripts
from tenure.stores.redis.lua.messagepack import pack
from tenure.stores.redis.names import NODE, state_key
from tenure.stores.redis.script_runner import ScriptRunner
from tenure.stores.redis.servers.deployment import NO_GUARD, Rules
from tenure.stores.redis.servers.servers import RedisServers, Wiring

MOST_TEMPLATES = 1000
"""How many templates of releases are kept. Each takes about a kilobyte."""


class RedisStore:
    """One client's access to the locks in Redis."""

    def __init__(self, deployment: Wiring, runtime: Runtime) -> None:
        """Prepare the store; nothing is connected yet."""
        rules = self._rules = deployment.rules
        self._replicas = rules.replicas
        self._process = ""
        self._channel = runtime.new_id()
        self._deliver: Callable[[Notification], None] = _ignore
        hearing = RedisHearing(self._heard, self._missed, codec.is_for_waiter)
        servers = self._servers = RedisServers(deployment, runtime, hearing)
        self._links = servers.links
        channels = self._channels = RedisChannels(runtime, servers, self._channel, self._missed)
        self._runner = ScriptRunner(servers, channels, rules.replicas)
        self._clustered = servers.topology.clustered
        self.capabilities = capabilities_of(rules, clustered=self._clustered)
        self._publish = "SPUBLISH" if self._clustered else "PUBLISH"
        self._bound = micros(rules.max_ttl)
        self._client_fields = pack(self._publish, rules.guard, self._bound)
        """The fields of this client that the scripts receive, packed; acquire and release have their own."""
        self._release_fields = codec.release_fields(rules.guard, self._bound, sharded=self._clustered)
        self._templates: dict[str, RequestTemplate] = {}
        """The templates of releases by name. Those of acquisitions are kept with the requests."""
        self._scans = KeyScans(runtime, servers, self._runner, self._client_fields)

    # -- life ----------------------------------------------------------------------------------------------

    def identity(self) -> str:
        """Return the run id of the server that replied to the last `inspect`."""
        return self._process

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, and subscribe to this client's channel; in a Cluster each name has its own."""
        self._deliver = deliver
        topology = self._servers.topology
        if self._clustered:
            await topology.masters(until)
        else:
            await self._channels.listen_at_home(await topology.server("", until), until)
        return self._channel

    async def close(self) -> None:
        """Disconnect."""
        self._deliver = _ignore
        await self._servers.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._servers.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse the request."""
        if self._clustered and (request.wait or request.span > 1):
            taken = await self._take_or_listen(request, until)
            if taken is not None:
                return taken
        request_id, numbers = request.request_id.encode(), codec.acquire_numbers(request.wait, request.proposal)
        if self._replicas:
            return await self._acquire_replicated(request, numbers + request_id, until)
        runner, shared = self._runner, request.shared
        template = None if shared is None else shared.kept
        if not isinstance(template, RequestTemplate) or not template.fits(request_id, runner.seen):
            fields = codec.request_fields(request, self._rules.guard, self._bound, sharded=self._clustered)
            template = runner.template(scripts.ACQUIRE, request.name, fields, len(numbers), len(request_id))
            if shared is not None:
                shared.kept = template
        value = await runner.run_request(template, request.name, request_id, numbers, until)
        if type(value) is int:
            return Granted(value, request.ttl)
        return codec.granted_or(runner.without_generation(template, value), request)

    async def _acquire_replicated(self, request: AcquireRequest, numbers: bytes, until: float) -> Reply:
        """Acquire, and refuse a grant that too few replicas have."""
        args = codec.request_fields(request, self._rules.guard, self._bound, sharded=self._clustered), numbers
        answer = await self._runner.run(scripts.ACQUIRE, request.name, request.request_id, args, until)
        reply = codec.granted_or(answer.value, request)
        if answer.acknowledged < self._replicas and isinstance(reply, Granted):
            raise OutcomeUnknown(self._too_few(answer))
        return reply

    async def _take_or_listen(self, request: AcquireRequest, until: float) -> Reply | None:
        """Acquire a free name at once, without a subscription; otherwise subscribe to the channel of the name.

        A request that reserves several tokens subscribes first: its holder must hear when the name is contended.
        """
        if request.name not in self._channels.by_name and request.span == 1:
            request.wait = False
            try:
                reply = await self.acquire(request, until)
            finally:
                request.wait = True
            if not isinstance(reply, Busy):
                return reply
        await self._channels.listen_for(request.name, until)
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
            codec.request_fields(request, self._rules.guard, self._bound, sharded=False),
            number(proposal),
            b"1" if request.wait else b"0",
            *(each.request_id for each in requests),
        )
        answer = await self._runner.call(scripts.ACQUIRE_MANY, request.name, tuple(keys), args, until)
        replies = [codec.reply_of(each) for each in answer.value]
        if answer.acknowledged < self._replicas and any(isinstance(each, Granted) for each in replies):
            raise OutcomeUnknown(self._too_few(answer))
        return replies

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release the lease, and grant the name to the next waiter in the same step."""
        numbers = codec.release_numbers(release.unsure, release.token, release.keep)
        runner, request_id = self._runner, release.request_id.encode()
        template = self._templates.get(release.name)
        if template is None or not template.fits(request_id, runner.seen):
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            template = runner.template(
                scripts.RELEASE, release.name, self._release_fields, len(numbers), len(request_id)
            )
            self._templates[release.name] = template
        return codec.outcome_of(await runner.run_request(template, release.name, request_id, numbers, until))

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases in one step; in a Cluster in one step per name."""
        if not self._clustered:
            return await self._renew(renewals, until)
        replies: list[RenewReply] = []
        for renewal in renewals:
            await self._channels.listen_for(renewal.name, until)  # only a lease that lasts should hear of a revocation
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
        answer = await self._runner.call(scripts.RENEW, name, (self._runner.marker(name), *keys), args, until)
        if answer.acknowledged < self._replicas:
            raise OutcomeUnknown(self._too_few(answer))
        return [codec.renewed(renewal, each) for renewal, each in zip(renewals, answer.value, strict=True)]

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease without a gap."""
        numbers = number(adjust.token), number(adjust.weight), adjust.owner, number(adjust.raise_to)
        args = (self._client_fields, adjust.request_id, *numbers)
        return codec.adjusted(
            (await self._runner.run(scripts.ADJUST, adjust.name, adjust.request_id, args, until)).value
        )

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from the queue. If the name was granted to it meanwhile, the next waiter gets the name."""
        args = (self._client_fields, withdraw.request_id, b"1" if withdraw.unsure else b"0")
        return codec.not_granted_of(
            (await self._runner.run(scripts.WITHDRAW, withdraw.name, withdraw.request_id, args, until)).value
        )

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name."""
        answer = await self._runner.run(scripts.INSPECT, name, "", (self._client_fields,), until)
        self._process = answer.run_id.removeprefix(wire.DURABLE).partition(b"@")[0].decode()
        return codec.view_of(name, answer.value)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request to the holders of a name."""
        return codec.holders_of(
            (await self._runner.run(scripts.REQUEST_REVOCATION, name, "", (self._client_fields,), until)).value
        )

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        args = (self._client_fields, number(before), number(after))
        return int((await self._runner.run(scripts.RESIZE, name, "", args, until)).value)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only the lease with a token, and notify the holders."""
        args = (self._client_fields, number(token))
        return codec.holders_of((await self._runner.run(scripts.REVOKE, name, "", args, until)).value)

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        return await self._cell(name, (b"", b"", b"0"), until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version."""
        return await self._cell(name, (number(version), value, number(-(-keep // 1000))), until)

    async def _cell(self, name: str, args: tuple[Word, ...], until: float) -> Cell:
        keys = (self._runner.marker(name), f"{state_key(name)}:c")
        answer = await self._runner.call(scripts.CELL, name, keys, (self._client_fields, *args), until)
        version, value, now, written = answer.value
        if written and answer.acknowledged < self._replicas:
            raise OutcomeUnknown(self._too_few(answer))
        return Cell(bytes(value), int(version), int(now), bool(written))

    async def add_to_cell(self, name: str, addition: Addition, lane: str, number_: int, until: float) -> int | None:
        """Make an addition in one script, which answers a repeated request as the first."""
        keys = (self._runner.marker(name), f"{state_key(name)}:c")
        reply = b"" if addition.reply is None else number(addition.reply)
        bounds = number(addition.least), number(addition.most)
        args = (self._client_fields, number(addition.by), *bounds, reply, lane, number(number_))
        answer = await self._runner.call(scripts.CELL_ADD, name, keys, args, until)
        if answer.value is not None and answer.acknowledged < self._replicas:
            raise OutcomeUnknown(self._too_few(answer))
        return None if answer.value is None else int(answer.value)

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine of every node; in a Cluster that of every slot whose marker exists."""
        return await self._scans.end_quarantine(until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use, from some keys at one master."""
        return await self._scans.names(prefix, until, rest)

    def _too_few(self, answer: RedisReply) -> str:
        return (
            f"the server granted it, but only {answer.acknowledged} of {self._rules.replicas} replicas acknowledged it "
            "in time, so the grant does not count; check the replicas, or require fewer with replicas="
        )

    # -- notifications -------------------------------------------------------------------------------------

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event, as the link does on which notifications come. In a Cluster they come on several."""
        link = None if self._channels.home is None else self._links.get(self._channels.home)
        return await (event.wait(until) if link is None else link.wait(event, until))

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
        barging=True,
        cells=True,
        max_ttl=float("inf") if rules.guard == NO_GUARD else rules.max_ttl,
        multi_acquire=not clustered,  # the names of a Cluster lie on several nodes
    )


def _ignore(notification: Notification) -> None:
    """Ignore a notification, because the store is not open."""
