"""What the members of an etcd tell of their settings. Nothing is written."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tenure.contracts.findings import Facts, Report, clock_ahead
from tenure.contracts.runtime import Runtime
from tenure.doctor.etcd import MEMBER_RULES, RULES, EtcdFacts, EtcdMemberFacts
from tenure.errors import StoreError
from tenure.escaping import quoted, shown
from tenure.stores.etcd import errors, requests
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.options import EtcdDeployment
from tenure.transport.link import ServerAddress

DENIED = "denies this user access"
"""What our error says of a user without the right."""

NEVER = 2**62
"""A revision that no key has."""


class EtcdExaminer:
    """Looks at the members that the URL names."""

    def __init__(self, runtime: Runtime, deployment: EtcdDeployment, gateway: Gateway) -> None:
        self._runtime = runtime
        self._deployment = deployment
        self._gateway = gateway
        self._timeout = 1.0

    async def report(self, ttl: float, timeout: float) -> Report:
        """Look at each member, and then at the ensemble. Raises StoreError if no member answers."""
        self._timeout = timeout
        report, failed = Report(""), list[StoreError]()
        for address in self._deployment.addresses:
            facts = EtcdMemberFacts(str(address))
            try:
                await self._look_at_member(address, facts)
            except StoreError as error:
                failed.append(error)
                facts.silent = quoted(error)
            report.add(facts, MEMBER_RULES)
        if len(failed) == len(self._deployment.addresses):
            raise failed[0]
        ensemble = EtcdFacts(
            ",".join(map(str, self._deployment.addresses)), session=float(self._deployment.session_timeout), ttl=ttl
        )
        await self._look_at_ensemble(ensemble)
        report.add(ensemble, RULES)
        return report

    def _until(self) -> float:
        return self._runtime.now() + self._timeout

    async def _look_at_member(self, address: ServerAddress, facts: EtcdMemberFacts) -> None:
        before = self._runtime.wall()
        said = await self._gateway.exchange_with(address, "maintenance/status", {}, self._until())
        after = self._runtime.wall()
        facts.silent = ""
        facts.version = shown(str(said["version"])) if "version" in said else None
        facts.leader = str(said.get("leader", "0")) != "0"
        if (server := _instant(str(said.get("date", "")))) is not None:
            facts.ahead = clock_ahead(server, before / 1e6, after / 1e6, 1.0)

    async def _look_at_ensemble(self, facts: EtcdFacts) -> None:
        if (said := await self._exchange(facts, ("members", "learners"), "cluster/member/list", {})) is not None:
            members: list[JsonObject] = said.get("members") or []
            facts.learners = sum(bool(each.get("isLearner")) for each in members)
            facts.members = len(members) - facts.learners
        if (said := await self._exchange(facts, ("alarms",), "maintenance/alarm", {"action": "GET"})) is not None:
            alarms: list[JsonObject] = said.get("alarms") or []
            facts.alarms = [shown(str(each.get("alarm", ""))) for each in alarms]
        await self._look_at_rights(facts)

    async def _look_at_rights(self, facts: EtcdFacts) -> None:
        """Ask for a transaction that is never carried out: the server checks the rights of all its requests first."""
        key = f"{self._deployment.prefix}/~doctor"
        writes = [requests.put(key, ""), requests.delete(f"{key}-2")]
        body = requests.transaction([requests.changed(key, NEVER)], writes, [requests.get(key)])
        try:
            await self._gateway.exchange("kv/txn", body, self._until())
        except StoreError as error:
            if DENIED in str(error):
                facts.lacks = ["read and write"]
            else:
                facts.unseen["lacks"] = quoted(error)
        else:
            facts.lacks = []

    async def _exchange(self, facts: Facts, names: tuple[str, ...], path: str, body: JsonObject) -> JsonObject | None:
        try:
            return await self._gateway.exchange(path, body, self._until())
        except (StoreError, errors.LeaseGone) as error:
            facts.unseen.update(dict.fromkeys(names, quoted(error)))
            return None


def _instant(date: str) -> float | None:
    """Return the instant of a `Date` of HTTP; None if it is none."""
    try:
        parsed: datetime = parsedate_to_datetime(date)
    except ValueError:
        return None
    return parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp()
