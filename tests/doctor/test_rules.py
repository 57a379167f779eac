"""The rules of `tenure doctor`: which facts make which finding, and bugs planted in them."""

import inspect
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tenure.contracts import findings
from tenure.contracts.findings import Facts, Finding, Report, Severity, clock_ahead, judge
from tenure.doctor import common, etcd, lock_file, memcached, mysql, postgresql, quorum, redis, rows, zookeeper
from tenure.doctor.common import version_of
from tests.doctor.cases import CASES, RULES, SOUND, Case, facts_of, may_be_unknown
from tests.planting import module_with

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = (common, etcd, lock_file, memcached, mysql, postgresql, quorum, redis, rows, zookeeper)

KINDS = sorted(RULES, key=lambda kind: kind.__name__)


def found(case: Case, rules: Any = None) -> list[str]:  # noqa: ANN401 - rules of any kind
    """Return what the rules find in a case, with how much it weighs."""
    kind, given, _ = case
    return [f"{each.id} {each.severity}" for each in judge(facts_of(kind, given), rules or RULES[kind])]


@pytest.mark.parametrize("kind", KINDS)
def test_facts_make_their_findings(kind: type[Facts]) -> None:
    """Each rule finds what lies beyond its bound, and nothing on this side."""
    cases = [case for case in CASES if case[0] is kind]
    assert [(case[1], found(case)) for case in cases] == [(case[1], case[2]) for case in cases]


def test_each_finding_has_a_case() -> None:
    """No rule is without a case in which it finds something."""
    ids = {
        each
        for module in MODULES
        for each in re.findall(r'^ +"([a-z]+(?:-[a-z]+)+)",$', inspect.getsource(module), re.MULTILINE)
    }
    prefixed = {"clock", "quarantine", "max-ttl", "connections", "members", "session"}  # of common.py, by their kind
    seen = {each.partition(" ")[0] for case in CASES for each in case[2]}
    assert ids - seen == set()
    assert prefixed <= {each.partition("-")[2] for each in seen}
    assert len(seen) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_store_has_all_its_facts(kind: type[Facts]) -> None:
    """The cases begin with a store of which everything is known, so no rule is silent for want of a fact."""
    assert sorted(set(may_be_unknown(kind)) - SOUND[kind].keys()) == []
    assert facts_of(kind, {}).unknown() == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_fact_is_told_and_finds_nothing(kind: type[Facts]) -> None:
    """Whatever is not seen makes no finding, and the report says that it was not seen, and why."""
    nothing = kind("here")
    if kind is not quorum.QuorumFacts:
        assert judge(nothing, RULES[kind]) == []
    assert len(nothing.unknown()) == len(may_be_unknown(kind))
    for name in may_be_unknown(kind):
        facts = facts_of(kind, {name: None})
        facts.unseen[name] = "it was refused"
        assert [each.why for each in facts.unknown()] == ["it was refused"]
        assert judge(facts, RULES[kind]) == []


def test_every_finding_says_what_why_and_what_to_change() -> None:
    """Sentences for people, and a line to paste, on one line each."""
    for kind, given, _ in CASES:
        for each in judge(facts_of(kind, given), RULES[kind]):
            assert each.what.endswith("."), each
            assert each.why.endswith((".", ").")), each
            assert each.change, each
            assert each.place in {"here", "a", "b"} or kind is quorum.QuorumFacts
            assert "\n" not in each.text()


def test_a_report_has_the_heaviest_first() -> None:
    """Errors before warnings before notes, over all servers; a note alone weighs nothing."""
    report = Report("")
    report.add(facts_of(redis.RedisFacts, {"append_only": False}), redis.RULES)
    assert report.sound
    report.add(facts_of(redis.RedisFacts, {"ahead": 9.0}), redis.RULES)
    report.add(facts_of(redis.RedisFacts, {"role": "slave"}), redis.RULES)
    assert [each.severity for each in report.findings] == [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    assert not report.sound


@pytest.mark.parametrize(
    ("server", "grain", "ahead"),
    [(10.5, 0.0, 0.0), (12.0, 0.0, 1.0), (8.0, 0.0, -2.0), (9.0, 1.0, 0.0), (8.0, 1.0, -1.0), (13.0, 1.0, 2.0)],
)
def test_a_clock_is_compared_with_the_time_of_the_request(server: float, grain: float, ahead: float) -> None:
    """A clock counts as wrong only as far as it is certain: the reply took time, and whole seconds are rounded down."""
    assert clock_ahead(server, 10.0, 11.0, grain) == ahead


@pytest.mark.parametrize(
    ("text", "version"),
    [("3.5.13", (3, 5, 13)), ("3.10", (3, 10, 0)), ("10.11.6-MariaDB-0+deb12u1", (10, 11, 6)), ("no version", ())],
)
def test_a_version_is_numbers(text: str, version: tuple[int, ...]) -> None:
    """3.10 is later than 3.9."""
    assert version_of(text) == version


# -- planted bugs --------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[ModuleType, type[Facts], str, str]] = {
    "eviction is allowed": (redis, redis.RedisFacts, '{None, "noeviction"}', '{None, "allkeys-lru"}'),
    "eviction counts without a bound": (
        redis,
        redis.RedisFacts,
        "if not facts.maxmemory or facts.policy",
        "if facts.policy",
    ),
    "a full memory is found when it is empty": (
        redis,
        redis.RedisFacts,
        "used_memory < NEARLY",
        "used_memory > NEARLY",
    ),
    "no replicas are needed where one is": (redis, redis.RedisFacts, "least_replicas != 0", "least_replicas == 0"),
    "a lag of 0 is a short one": (redis, redis.RedisFacts, "0 < facts.most_lag <=", "0 <= facts.most_lag <="),
    "a version is too new": (redis, redis.RedisFacts, "found >= OLDEST", "found < OLDEST"),
    "a version is compared as text": (redis, redis.RedisFacts, "found >= OLDEST", 'facts.version >= "7.0.0"'),
    "the guard is taken for on": (
        redis,
        redis.RedisFacts,
        'if facts.guard == "off":\n        severity',
        'if facts.guard == "of":\n        severity',
    ),
    "the clocks of replicas count from the other side": (redis, redis.RedisFacts, "<= CLOCKS_APART", "> CLOCKS_APART"),
    "one Sentinel is enough": (redis, redis.RedisFacts, "count >= FEWEST_SENTINELS and ", ""),
    "an even number of Sentinels is fine": (redis, redis.RedisFacts, "and count % 2)", ")"),
    "a missing right is dropped": (redis, redis.RedisFacts, "    if not facts.lacks:\n", "    if facts.lacks:\n"),
    "a rule was forgotten": (redis, redis.RedisFacts, "    quarantine,\n    max_ttl,", "    max_ttl,"),
    "a pooler is no error for advisory locks": (
        postgresql,
        postgresql.PostgresFacts,
        "    if facts.advisory:\n",
        "    if not facts.advisory:\n",
    ),
    "read-only sessions count without a pooler": (
        postgresql,
        postgresql.PostgresFacts,
        "not facts.read_only or not facts.pooled",
        "not facts.read_only",
    ),
    "a timeout of none is a short one": (
        postgresql,
        postgresql.PostgresFacts,
        "0 < value < SHORTEST",
        "value < SHORTEST",
    ),
    "fsync is compared the wrong way round": (
        postgresql,
        postgresql.PostgresFacts,
        "facts.fsync is not False",
        "facts.fsync is not True",
    ),
    "an unknown fsync is off": (postgresql, postgresql.PostgresFacts, "facts.fsync is not False", "facts.fsync"),
    "commits wait though they are local": (
        postgresql,
        postgresql.PostgresFacts,
        'not in {"off", "local"}',
        'not in {"off"}',
    ),
    "a log is flushed if it is not": (mysql, mysql.MySqlFacts, "facts.flush in {None, 1}", "facts.flush in {None, 2}"),
    "MariaDB is measured as MySQL": (mysql, mysql.MySqlFacts, '"mariadb" in', '"MARIADB" in'),
    "what MariaDB tells old replicas is its version": (mysql, mysql.MySqlFacts, '.removeprefix("5.5.5-")', ""),
    "a short wait_timeout is a long one": (
        mysql,
        mysql.MySqlFacts,
        "wait_timeout >= SHORTEST",
        "wait_timeout <= SHORTEST",
    ),
    "a mended etcd is not": (etcd, etcd.EtcdMemberFacts, "found >= mended", "found > mended"),
    "a later line of etcd is an early one": (
        etcd,
        etcd.EtcdMemberFacts,
        "line > LAST_LINE",
        "str(line) > str(LAST_LINE)",
    ),
    "an unknown leader is none": (etcd, etcd.EtcdMemberFacts, "facts.leader is not False", "facts.leader"),
    "a session is compared with itself": (
        zookeeper,
        zookeeper.ZooKeeperFacts,
        "facts.granted - facts.asked",
        "facts.granted - facts.granted",
    ),
    "evicted items are not counted": (
        memcached,
        memcached.MemcachedFacts,
        "not facts.evicted or",
        "not facts.evicts or",
    ),
    "-M is taken for the default": (
        memcached,
        memcached.MemcachedFacts,
        "facts.evicts is not False",
        "facts.evicts is not True",
    ),
    "a shared file system is a local one": (
        lock_file,
        lock_file.LockFileFacts,
        "    if not facts.shared:\n",
        "    if facts.shared:\n",
    ),
    "free space is too much": (lock_file, lock_file.LockFileFacts, "facts.free >= LEAST", "facts.free <= LEAST"),
    "two nodes of one server are two": (quorum, quorum.QuorumFacts, "!= node.place", "== node.place"),
    "enough nodes are silent": (quorum, quorum.QuorumFacts, ">= facts.quorum", "> facts.quorum"),
    "clocks are compared one by one": (quorum, quorum.QuorumFacts, "max(known)[0] - min(known)[0]", "max(known)[0]"),
}
"""A bug that a maintainer could make: the module, the kind of facts, what is right, and what is wrong."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """A rule that is wrong fails a case, or speaks of what is unknown."""
    module, kind, right, wrong = BUGS[bug]
    rules: Any = vars(module_with(module, (right, wrong)))["MEMBER_RULES" if kind is etcd.EtcdMemberFacts else "RULES"]
    assert _is_noticed(rules, kind), bug


COMMON_BUGS: dict[str, tuple[str, str]] = {
    "a clock that is behind is right": ("abs(ahead) <= tolerance", "ahead <= tolerance"),
    "a quarantine that is over goes on": ("if not left or left <= 0:", "if left is None:"),
    "the ttl of others does not count": ("max(ttl, longest or 0.0)", "ttl"),
    "a longer ttl is a shorter one": ("used <= max_ttl", "used >= max_ttl"),
    "two members are enough": ("members % 2 and members > 1", "members > 1"),
    "one member is enough": ("members % 2 and members > 1", "members % 2"),
    "a shorter session outlives the ttl": ("session <= ttl", "session >= ttl"),
    "connections are all used at half": ("used < NEARLY_ALL * most", "used < most"),
}
"""Bugs in what several kinds share."""


@pytest.mark.parametrize("bug", COMMON_BUGS)
def test_a_planted_bug_in_common_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that use a wrong part of common.py fail a case."""
    wrong = module_with(common, COMMON_BUGS[bug])
    for module in MODULES:
        for name in ("of_clock", "of_quarantine", "of_max_ttl", "of_members", "of_session", "of_connections"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(wrong, name))
    assert any(_is_noticed(RULES[kind], kind) for kind in KINDS), bug


def test_an_unknown_fact_that_is_dropped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is silent about what it did not see fails the test of unknown facts."""
    wrong: Any = module_with(findings, ("is None\n        ]", "is None and each.name in self.unseen\n        ]"))
    monkeypatch.setattr(Facts, "unknown", wrong.Facts.unknown)
    assert len(redis.RedisFacts("here").unknown()) != len(may_be_unknown(redis.RedisFacts))


def _is_noticed(rules: Any, kind: type[Facts]) -> bool:  # noqa: ANN401 - rules of any kind
    checks: list[Callable[[], bool]] = [
        lambda: any(found(case, rules) != case[2] for case in CASES if case[0] is kind),
        lambda: any(_speaks_of_the_unknown(rules, kind, name) for name in may_be_unknown(kind)),
    ]
    try:
        return any(check() for check in checks)
    except TypeError:  # a comparison with None
        return True


def _speaks_of_the_unknown(rules: Any, kind: type[Facts], name: str) -> bool:  # noqa: ANN401
    made: list[Finding] = judge(facts_of(kind, {name: None}), rules)
    return bool(made)
