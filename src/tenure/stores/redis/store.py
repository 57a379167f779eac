"""The Redis store: the grant table as Lua scripts, one per operation, at the server that holds the name.

A script is atomic and uses the server's time. Every request is idempotent by its request id, so a request without a
reply may be repeated. An error reply of the server says that nothing was done.
"""

# ruff: noqa: D102 - the contracts say what these methods do

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tenure.contracts.cells import Addition, Cell
from tenure.contracts.deadlines import micros
from tenure.contracts.findings import Finding, ignore_findings, judge
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
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Event, Runtime
from tenure.contracts.store import Capabilities
from tenure.doctor.redis import RULES
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.redis import codec, scripts
from tenure.stores.redis.codec import pack
from tenure.stores.redis.deployment import NO_GUARD, Rules
from tenure.stores.redis.examining import RedisExaminer
from tenure.stores.redis.key_scans import KeyScans
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks, RedisReply, ReplyError, Word, Words
from tenure.stores.redis.links.wire import RequestTemplate, number
from tenure.stores.redis.names import NODE, state_key
from tenure.stores.redis.servers import RedisChannels, RedisServers, ScriptRunner, Wiring
from tenure.stores.renewing import renew_apart

MOST_TEMPLATES = 1000
"""How many templates of releases are kept. Each takes about a kilobyte."""

AT_ONCE = 50
"""How many leases one script renews, and how many waiters it shows: so few that the server is soon there for others."""


class RedisStore:
    """One client's access to the locks in Redis."""

    def __init__(self, deployment: Wiring, runtime: Runtime) -> None:
        rules = self._rules = deployment.rules
        self._replicas = rules.replicas
        self._now = runtime.now
        self._process = ""
        self._channel = runtime.new_id()
        self._deliver: Callable[[Notification], None] = _ignore
        callbacks = RedisCallbacks(self._heard, self._missed, codec.is_for_waiter, self._greeted)
        servers = self._servers = RedisServers(deployment, runtime, callbacks)
        self._links = servers.links
        self._topology = servers.topology
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
        self._sends_to: set[RedisAddress] = set()
        """The servers that have the script of releases, as far as is known: there a release need not be waited for."""
        scans = KeyScans(runtime, servers, self._runner, self._client_fields)
        self.names = scans.names
        self.end_quarantine = scans.end_quarantine
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._examiner = RedisExaminer(runtime, servers, deployment)
        self.examine = self._examiner.report
        self._greeted_by: set[RedisAddress] = set()
        """The servers whose greeting was looked at."""

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
        self._deliver = _ignore
        await self._servers.close()

    def abandon(self) -> None:
        self._servers.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        if self._clustered and (request.wait or request.span > 1):
            taken = await self._take_or_listen(request, until)
            if taken is not None:
                return taken
        request_id, numbers = request.request_id.encode(), codec.acquire_numbers(request.wait, request.proposal)
        if self._replicas:
            return await self._acquire_replicated(request, numbers + request_id, until)
        runner, shared = self._runner, request.shared
        template: RequestTemplate | None = None if shared is None else shared.kept
        if template is None or not template.fits(request_id, runner.seen):
            fields = codec.request_fields(request, self._rules.guard, self._bound, sharded=self._clustered)
            template = runner.template(scripts.ACQUIRE, request.name, fields, len(numbers), len(request_id))
            if shared is not None:
                shared.kept = template
        address = self._topology.known or await runner.find(request.name, until)
        link = self._links.get(address) or self._servers.link(address)
        try:
            value = link.run_request(template, request_id, numbers, until)
            if not link.blocks:
                value = await value
        except (ReplyError, StoreUnavailable) as error:
            value = await runner.after(error, address, template.words(request_id, numbers), until)
        if type(value) is int:
            return Granted(value, request.ttl)
        return codec.granted_or(runner.without_generation(template, value), request)

    async def _acquire_replicated(self, request: AcquireRequest, numbers: bytes, until: float) -> Reply:
        """Acquire, and refuse a grant that too few replicas have."""
        args = codec.request_fields(request, self._rules.guard, self._bound, sharded=self._clustered), numbers
        answer = await self._runner.run(scripts.ACQUIRE, request.name, request.request_id, args, until)
        reply = codec.granted_or(answer.value, request)
        if isinstance(reply, Granted):
            self._require_replicas(answer)
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
        if any(isinstance(each, Granted) for each in replies):
            self._require_replicas(answer)
        return replies

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        template, request_id, numbers = self._packed_release(release)
        address = self._topology.known or await self._runner.find(release.name, until)
        link = self._links.get(address) or self._servers.link(address)
        try:
            value = link.run_request(template, request_id, numbers, until)
            if not link.blocks:
                value = await value
        except (ReplyError, StoreUnavailable) as error:
            value = await self._runner.after(error, address, template.words(request_id, numbers), until)
        return codec.outcome_of(release, value)

    def send_release(
        self,
        request: AcquireRequest,  # noqa: ARG002
        release: ReleaseRequest,
        until: float,
        told: Callable[[Outcome | None], None],
    ) -> bool:
        address = self._servers.topology.known_for(release.name)
        link = None if address is None else self._links.get(address)
        if address is None or link is None:
            return False
        if address not in self._sends_to:  # its process may lack the script, which a release that waits has it load
            self._sends_to.add(address)
            return False

        def heard(value: Any) -> None:  # noqa: ANN401 - as a script returns it
            if type(value) is not int:  # an error, or none has come: it may be another process by now
                self._sends_to.discard(address)
            told(codec.outcome_of(release, value) if type(value) is int else None)

        return link.send_request(*self._packed_release(release), until, heard)

    def collect_replies(self) -> None:
        for link in list(self._links.values()):
            link.collect()

    def _packed_release(self, release: ReleaseRequest) -> tuple[RequestTemplate, bytes, bytes]:
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
        return template, request_id, numbers

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        if self._clustered:
            if self._topology.known_for(renewals[0].name) is None:
                with suppress(StoreError):  # then the requests say why
                    await self._topology.masters(until - (until - self._now()) / 2)
            return await renew_apart(
                renewals, lambda each: self._topology.known_for(each.name), self._renew_at, self._now, until
            )
        replies: list[RenewReply] = []
        for first in range(0, len(renewals), AT_ONCE):
            replies += await self._renew(renewals[first : first + AT_ONCE], until)
        return replies

    async def _renew_at(self, _: RedisAddress | None, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew the leases at one master of a Cluster, one by one, until one of them gets no answer."""
        replies: list[RenewReply | StoreError] = []
        for each in renewals:
            try:
                await self._channels.listen_for(each.name, until)  # only a lease that lasts should hear of a revocation
                replies += await self._renew([each], until)
            except StoreUnavailable as error:
                return [*replies, *[error] * (len(renewals) - len(replies))]
            except StoreError as error:
                replies.append(error)
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
        self._require_replicas(answer)
        return [codec.renewed(renewal, each) for renewal, each in zip(renewals, answer.value, strict=True)]

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        numbers = number(adjust.token), number(adjust.weight), adjust.owner, number(adjust.raise_to)
        further = adjust.successor, adjust.channel, number(adjust.ttl)
        args = (self._client_fields, adjust.request_id, *numbers, *further)
        return codec.adjusted(
            (await self._runner.run(scripts.ADJUST, adjust.name, adjust.request_id, args, until)).value
        )

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        args = (self._client_fields, withdraw.request_id, b"1" if withdraw.unsure else b"0")
        return codec.not_granted_of(
            (await self._runner.run(scripts.WITHDRAW, withdraw.name, withdraw.request_id, args, until)).value
        )

    async def inspect(self, name: str, until: float) -> NameView:
        pages: list[NameView] = []
        after: Any = b"-inf"
        while after:
            args = self._client_fields, after, number(AT_ONCE)
            answer = await self._runner.run(scripts.INSPECT, name, "", args, until)
            pages.append(codec.view_of(name, answer.value))
            after = answer.value[-1]
            self._process = answer.run_id.removeprefix(wire.DURABLE).partition(b"@")[0].decode()
        pages[0].waiters = [each for page in pages for each in page.waiters]
        return pages[0]

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        return codec.holders_of(
            (await self._runner.run(scripts.REQUEST_REVOCATION, name, "", (self._client_fields,), until)).value
        )

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        args = (self._client_fields, number(before), number(after))
        return int((await self._runner.run(scripts.RESIZE, name, "", args, until)).value)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        args = (self._client_fields, number(token))
        return codec.holders_of((await self._runner.run(scripts.REVOKE, name, "", args, until)).value)

    async def read_cell(self, name: str, until: float) -> Cell:
        return await self._cell(name, (b"", b"", b"0"), until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        return await self._cell(name, (number(version), value, number(-(-keep // 1000))), until)

    async def _cell(self, name: str, args: Words, until: float) -> Cell:
        keys = (self._runner.marker(name), f"{state_key(name)}:c")
        answer = await self._runner.call(scripts.CELL, name, keys, (self._client_fields, *args), until)
        version, value, now, written = answer.value
        if written:
            self._require_replicas(answer)
        return Cell(bytes(value), int(version), int(now), bool(written))

    async def add_to_cell(self, name: str, addition: Addition, lane: str, number_: int, until: float) -> int | None:
        keys = (self._runner.marker(name), f"{state_key(name)}:c")
        reply = b"" if addition.reply is None else number(addition.reply)
        bounds = number(addition.least), number(addition.most)
        args = (self._client_fields, number(addition.by), *bounds, reply, lane, number(number_))
        answer = await self._runner.call(scripts.CELL_ADD, name, keys, args, until)
        if answer.value is None:
            return None
        self._require_replicas(answer)
        return int(answer.value)

    def _greeted(self, address: RedisAddress, replies: Sequence[Any]) -> None:
        """Tell what is wrong with a server, as far as its greeting shows it."""
        if address not in self._greeted_by:
            self._greeted_by.add(address)
            self.on_findings(judge(self._examiner.of_greeting(address, replies), RULES))

    def _require_replicas(self, answer: RedisReply) -> None:
        """Raise OutcomeUnknown if too few replicas have what a script has granted."""
        if answer.acknowledged < self._replicas:
            raise OutcomeUnknown(
                f"the server granted it, but only {answer.acknowledged} of {self._replicas} replicas acknowledged it "
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
        runs_in_caller=False,
        pushes_count=rules.replicas == 0,
        barging=True,
        cells=True,
        hands_over=True,
        max_ttl=float("inf") if rules.guard == NO_GUARD else rules.max_ttl,
        multi_acquire=not clustered,  # the names of a Cluster lie on several nodes
    )


def _ignore(notification: Notification) -> None:
    """Ignore a notification, because the store is not open."""
