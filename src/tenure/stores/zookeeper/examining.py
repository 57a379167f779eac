"""What a ZooKeeper tells of its settings. Nothing is written but the channel of the client's session."""

import asyncio
import re
import socket
from typing import cast

from tenure.contracts.findings import Facts, Finding, Report, judge
from tenure.contracts.runtime import Runtime
from tenure.doctor.common import version_of
from tenure.doctor.zookeeper import RULES, ZooKeeperFacts
from tenure.errors import StoreError, StoreUnavailable
from tenure.escaping import quoted, shown
from tenure.stores.zookeeper.library import KazooClient, Result, codes
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.session import ZooKeeperSession

CONFIG = "/zookeeper/config"
"""The node in which the members are listed, since 3.5."""

DENIED = "lacks a permission"
"""What our error says of a login without the right."""

LONGEST = 65_536
"""The longest reply to a four-letter word that is read, in bytes."""

NO_VERSION = 2**31 - 1
"""The version of no node."""

NO_AUTH = -102


class ZooKeeperExaminer:
    """Looks at the ensemble, in the session of the client."""

    def __init__(
        self, runtime: Runtime, access: ZooKeeperAccess, session: ZooKeeperSession, nodes: ZooKeeperNodes
    ) -> None:
        """Look through `session`, which is begun if there is none."""
        self._runtime = runtime
        self._access = access
        self._session = session
        self._nodes = nodes
        self._timeout = 1.0

    def at_opening(self) -> list[Finding]:
        """Return what beginning the session has shown."""
        facts = self._begin(0.0)
        facts.granted = self._session.lasts
        return judge(facts, RULES)

    async def report(self, ttl: float, timeout: float) -> Report:
        """Look at the ensemble. Raises StoreError if no server begins a session."""
        self._timeout = timeout
        facts = self._begin(ttl)
        await self._look_at_version(facts)
        try:
            await self._session.ready(self._runtime.now() + 3 * timeout)
        except StoreUnavailable:
            raise
        except StoreError as error:
            if DENIED not in str(error):
                raise
            facts.lacks = ["use"]
            facts.unseen.update(dict.fromkeys(("granted", "members"), quoted(error)))
        else:
            facts.granted = self._session.lasts
            await self._look_at_members(facts)
            await self._look_at_rights(facts)
        report = Report("")
        report.add(facts, RULES)
        return report

    def _begin(self, ttl: float) -> ZooKeeperFacts:
        return ZooKeeperFacts(self._access.hosts, asked=float(self._access.options["timeout"]), ttl=ttl)

    def _until(self) -> float:
        return self._runtime.now() + self._timeout

    async def _look_at_members(self, facts: ZooKeeperFacts) -> None:
        try:
            found = await self._nodes.get(CONFIG, self._until())
        except StoreError as error:
            facts.unseen["members"] = quoted(error)
            return
        if found is None:
            facts.unseen["members"] = f"there is no node {CONFIG}"
            return
        lines = re.findall(r"^server\.\d+=(\S+)", found[0].decode("utf-8", "replace"), re.MULTILINE)
        facts.members = len([each for each in lines if ":observer" not in each]) or 1  # a standalone server lists none

    async def _look_at_rights(self, facts: ZooKeeperFacts) -> None:
        """Send a transaction that is always refused: the server checks the right of its first part before."""
        root = self._access.root

        def send(client: KazooClient) -> list[Result]:
            refused = client.transaction()
            refused.create(f"{root}/~doctor", b"")
            refused.check(root, NO_VERSION)
            return [client.get_children_async(root), refused.commit_async()]

        try:
            answers = await self._session.exchange(self._until(), send, writes=False)
        except StoreError as error:
            if DENIED in str(error):
                facts.lacks = ["read"]
            else:
                facts.unseen["lacks"] = quoted(error)
            return
        parts = answers.values[1]
        refused = isinstance(parts, list) and NO_AUTH in codes(cast("list[object]", parts))
        facts.lacks = ["create"] if refused else []

    async def _look_at_version(self, facts: ZooKeeperFacts) -> None:
        """Ask each server by a four-letter word; note the oldest version."""
        if self._access.tls is not None:
            facts.unseen["version"] = "the servers are not asked through TLS"
            return
        versions: list[str] = []
        for host, port in self._access.servers:
            said = await self._in_thread(host, port, facts)
            if found := re.search(r"Zookeeper version: ([\w.]+)", said):
                versions.append(shown(found[1]))
            elif said:
                facts.unseen["version"] = "the servers do not answer srvr (4lw.commands.whitelist)"
        facts.version = min(versions, key=version_of, default=None)

    async def _in_thread(self, host: str, port: int, facts: Facts) -> str:
        """Return the reply to srvr. It comes over a socket of its own, which would block an event loop."""

        def request() -> str:
            with socket.create_connection((host, port), self._timeout) as connection:
                connection.settimeout(self._timeout)
                connection.sendall(b"srvr")
                said = b""
                while len(said) < LONGEST and (data := connection.recv(4096)):
                    said += data
            return said.decode("utf-8", "replace")

        try:
            return request() if self._runtime.form == "threads" else await asyncio.to_thread(request)
        except OSError as error:
            facts.unseen["version"] = shown(error.strerror or str(error) or "timed out")
            return ""
