"""What a Redis tells of its settings: a few requests to each server, and the facts in the replies.

Each request has a time of its own. A request that a server refuses (a managed service, a user with few rights) leaves
its facts unknown, and the report says why. Nothing is written.
"""

import json
import re
import struct
from collections.abc import Sequence
from typing import Any

from tenure.contracts.findings import Facts, Report, clock_ahead
from tenure.contracts.runtime import Runtime
from tenure.doctor.redis import RULES, RedisFacts
from tenure.errors import StoreError
from tenure.escaping import quoted, shown
from tenure.stores.redis.deployment import GUARDS, NO_GUARD
from tenure.stores.redis.links.link import RedisAddress, ReplyError, Word
from tenure.stores.redis.names import MARKERS, NODE
from tenure.stores.redis.servers import START, RedisServers, Wiring
from tenure.stores.redis.topology import Sentinels, words_of

PAGES, MOST_MARKERS = 100, 100
"""How many pages of keys are searched for the markers of a Cluster, and how many of them are read."""

MARKER = re.compile(rb"form \d+ \S+ (.{48})(\d+) (\w+)@(\d+)$", re.DOTALL)
"""A marker: when its generation began, the end of the quarantine, the longest lease in use, and three more numbers."""

NEEDED = (
    ("get", "tenure:node"),
    ("set", "tenure:node", "1"),
    ("hget", "tenure:{}", "f"),
    ("hset", "tenure:{}", "f", "1"),
    ("hdel", "tenure:{}", "f"),
    ("zadd", "tenure:{}:q", "1", "m"),
    ("zrem", "tenure:{}:q", "m"),
    ("zcard", "tenure:{}:q"),
    ("zrank", "tenure:{}:q", "m"),
    ("zrange", "tenure:{}:q", "0", "0"),
    ("zpopmin", "tenure:{}:q"),
    ("pexpireat", "tenure:{}", "1"),
    ("time",),
    ("evalsha", "0", "0"),
    ("scan", "0"),
    ("info",),
)
"""The commands that every client needs, with keys as it uses them."""

SINGLE = (
    ("publish", "tenure:c", "m"),
    ("subscribe", "tenure:c"),
    ("unsubscribe", "tenure:c"),
    ("pubsub|numsub", "pubsub", "numsub", "tenure:c"),
)
CLUSTERED = (
    ("cluster|slots", "cluster", "slots"),
    ("asking",),
    ("spublish", "tenure:c", "m"),
    ("ssubscribe", "tenure:c"),
    ("sunsubscribe", "tenure:c"),
    ("pubsub|shardnumsub", "pubsub", "shardnumsub", "tenure:c"),
)
REPLICATED = (("wait", "0", "1"),)
"""The commands that a client needs besides: outside of a Cluster, in one, and with `replicas`."""

ALLOWED = """\
local lacks = {}
for _, needed in ipairs(cjson.decode(ARGV[1])) do
    local label = table.remove(needed, 1)
    if not string.find(label, '|', 1, true) then table.insert(needed, 1, label) end
    local known, allowed = pcall(redis.acl_check_cmd, unpack(needed))
    if known and allowed == false then lacks[#lacks + 1] = label end
end
return lacks
"""
"""Returns the commands that the user of the connection may not use. The server checks them and runs none."""


def facts_of_info(facts: RedisFacts, info: str) -> None:
    """Note what a reply to INFO tells. It may have some sections only."""
    said = dict(line.split(":", 1) for line in info.replace("\r", "").split("\n") if ":" in line)
    if "redis_version" in said or "valkey_version" in said:
        facts.version = shown(said.get("valkey_version", said.get("redis_version", "")))
    facts.run_id = said.get("run_id", facts.run_id)
    facts.role = said.get("role", facts.role)
    facts.replication_id = said.get("master_replid", facts.replication_id)
    facts.policy = said.get("maxmemory_policy", facts.policy)
    for name, key in NUMBERS.items():
        if (value := said.get(key, "")).isdigit():
            setattr(facts, name, int(value))
    if "aof_enabled" in said:
        facts.append_only = said["aof_enabled"] == "1"
    if "role" in said and facts.least_replicas is None and "min_slaves_good_slaves" not in said:
        facts.least_replicas = 0  # the line is there only if both settings are above 0


NUMBERS = {
    "replicas": "connected_slaves",
    "maxmemory": "maxmemory",
    "used_memory": "used_memory",
    "evicted": "evicted_keys",
    "clients": "connected_clients",
    "most_clients": "maxclients",
}
"""The facts that are numbers, and the lines of INFO that tell them."""


class RedisExaminer:
    """Looks at the servers of one client."""

    def __init__(self, runtime: Runtime, servers: RedisServers, deployment: Wiring) -> None:
        self._runtime = runtime
        self._servers = servers
        self._topology = servers.topology
        self._rules = deployment.rules
        self._fan_out = bool(getattr(deployment, "fan_out", False))
        self._timeout = 1.0

    def begin(self, address: RedisAddress, ttl: float = 0.0) -> RedisFacts:
        """Return the facts of a server of which nothing is known yet."""
        rules = self._rules
        shape = "single"
        if self._topology.clustered:
            shape = "cluster"
        elif isinstance(self._topology, Sentinels):
            shape = "sentinel"
        return RedisFacts(
            str(address),
            shape=shape,
            guard=next(name for name, number in GUARDS.items() if number == rules.guard),
            wait_replicas=rules.replicas,
            max_ttl=rules.max_ttl,
            ttl=ttl,
            in_quorum=self._fan_out,
        )

    def of_greeting(self, address: RedisAddress, replies: Sequence[Any]) -> RedisFacts:
        """Return what a server told when it was connected."""
        facts = self.begin(address)
        facts_of_info(facts, "\n".join(_text(each) for each in replies if isinstance(each, bytes)))
        return facts

    async def report(self, ttl: float, timeout: float) -> Report:
        """Look at all masters. Each request may take `timeout` seconds. Raises StoreError if no server answers."""
        self._timeout = timeout
        report = Report("")
        for address in await self._topology.masters(self._until()):
            facts = self.begin(address, ttl)
            await self._look(address, facts)
            report.add(facts, RULES)
        return report

    def _until(self) -> float:
        return self._runtime.now() + self._timeout

    async def _command(self, address: RedisAddress, *words: Word) -> Any:  # noqa: ANN401 - whatever the command answers
        return await self._servers.link(address).command(*words, until=self._until())

    async def _look(self, address: RedisAddress, facts: RedisFacts) -> None:
        """Gather the facts of a server. Raises StoreError if it does not answer at all."""
        before = self._runtime.wall() / 1e6
        now = before
        try:
            seconds, micros = await self._command(address, "TIME")
            now = int(seconds) + int(micros) / 1e6
            facts.ahead = clock_ahead(now, before, self._runtime.wall() / 1e6)
        except ReplyError as error:
            self._unseen(facts, error, "ahead")
        replicas = await self._look_at_info(address, facts)
        await self._look_at_settings(address, facts)
        await self._look_at_rights(address, facts)
        await self._look_at_markers(address, facts, now)
        await self._look_at_replicas(facts, replicas)
        await self._look_at_sentinels(facts)

    async def _look_at_info(self, address: RedisAddress, facts: RedisFacts) -> list[RedisAddress]:
        """Read INFO; return the addresses of the replicas that it names."""
        try:
            info = _text(await self._command(address, "INFO"))
        except (ReplyError, StoreError) as error:
            self._unseen(facts, error, *(each for each in RedisFacts.__slots__ if getattr(facts, each, 0) is None))
            return []
        facts_of_info(facts, info)
        found = re.findall(r"^slave\d+:ip=([^,\s]+),port=(\d+)", info, re.MULTILINE)
        return [RedisAddress(host, int(port)) for host, port in found]

    async def _look_at_settings(self, address: RedisAddress, facts: RedisFacts) -> None:
        for name, setting in (
            ("fsync", "appendfsync"),
            ("least_replicas", "min-replicas-to-write"),
            ("most_lag", "min-replicas-max-lag"),
        ):
            try:
                reply = await self._command(address, "CONFIG", "GET", setting)
            except (ReplyError, StoreError) as error:
                self._unseen(facts, error, name)
                continue
            words = words_of(reply)
            if len(words) < 2:  # noqa: PLR2004 - a name and a value
                continue
            value = _text(words[1])
            setattr(facts, name, int(value) if value.isdigit() else shown(value))

    async def _look_at_rights(self, address: RedisAddress, facts: RedisFacts) -> None:
        needed = [
            *NEEDED,
            *(CLUSTERED if self._topology.clustered else SINGLE),
            *(REPLICATED if self._rules.replicas else ()),
        ]
        try:
            lacks = await self._command(address, "EVAL", ALLOWED, "0", json.dumps(needed))
        except ReplyError as error:
            if error.code == "NOPERM":
                facts.lacks = ["eval"]
            else:
                self._unseen(facts, error, "lacks")
        except StoreError as error:
            self._unseen(facts, error, "lacks")
        else:
            facts.lacks = [shown(_text(each)) for each in lacks]

    async def _look_at_markers(self, address: RedisAddress, facts: RedisFacts, now: float) -> None:
        """Read the markers: what they say of a quarantine, and of the longest lease in use."""
        if self._rules.guard == NO_GUARD:
            facts.quarantine = facts.longest_ttl = 0.0
            return
        try:
            markers = [await self._command(address, "GET", key) for key in await self._marker_keys(address)]
        except (ReplyError, StoreError) as error:
            self._unseen(facts, error, "quarantine", "longest_ttl")
            return
        facts.quarantine = facts.longest_ttl = 0.0
        if facts.guard == "strict" and not self._topology.clustered and markers == [None]:
            facts.quarantine = facts.max_ttl
            facts.quarantined_because = (
                "it has no marker, so with guard=strict its quarantine begins with the first request"
            )
        for marker in markers:
            found = MARKER.match(marker) if isinstance(marker, bytes) else None
            if found is None:
                continue
            began, ends, longest, used_until, *_ = struct.unpack(">dddddd", found[1])
            if used_until / 1e6 > now:
                facts.longest_ttl = max(facts.longest_ttl, longest / 1e6)
            left = ends / 1e6 - now
            if left > facts.quarantine:
                facts.quarantine = left
                cause = "it was promoted" if int(found[4]) else "it restarted, or is another server than before,"
                facts.quarantined_because = f"{cause} {max(0.0, now - began / 1e6):.0f} s ago"
            if facts.run_id and found[3].decode() != facts.run_id and facts.guard in {"observed", "strict"}:
                facts.quarantine = max(facts.quarantine, facts.max_ttl)
                facts.quarantined_because = (
                    "it is another process than the one that granted before, and its quarantine begins with the next "
                    "request"
                )

    async def _marker_keys(self, address: RedisAddress) -> list[str]:
        if not self._topology.clustered:
            return [NODE]
        keys, cursor = set[str](), START
        for _ in range(PAGES):
            cursor, found = await self._servers.scan(address, cursor, MARKERS, self._until())
            keys |= found
            if cursor == START or len(keys) >= MOST_MARKERS:
                break
        return sorted(keys)[:MOST_MARKERS]

    async def _look_at_replicas(self, facts: RedisFacts, replicas: Sequence[RedisAddress]) -> None:
        """Compare the clocks of the replicas with that of the master."""
        facts.clocks_apart = 0.0
        if facts.ahead is None:
            facts.clocks_apart = None
            return
        for each in replicas:
            before = self._runtime.wall()
            try:
                seconds, micros = await self._command(each, "TIME")
            except (ReplyError, StoreError) as error:
                facts.clocks_apart = None
                self._unseen(facts, error, "clocks_apart")
                return
            ahead = clock_ahead(int(seconds) + int(micros) / 1e6, before / 1e6, self._runtime.wall() / 1e6)
            facts.clocks_apart = max(facts.clocks_apart, abs(ahead - facts.ahead))

    async def _look_at_sentinels(self, facts: RedisFacts) -> None:
        """Ask a Sentinel how many there are."""
        if not isinstance(self._topology, Sentinels):
            facts.sentinels = 0
            return
        try:
            facts.sentinels = await self._topology.count_sentinels(self._until())
        except (ReplyError, StoreError) as error:
            self._unseen(facts, error, "sentinels")

    @staticmethod
    def _unseen(facts: Facts, error: Exception, *names: str) -> None:
        facts.unseen.update(dict.fromkeys(names, quoted(error)))


def _text(reply: Any) -> str:  # noqa: ANN401 - whatever the server answers
    """Return a reply as text. In RESP3 a verbatim text begins with its format."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return text.removeprefix("txt:")
