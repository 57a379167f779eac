"""When each test runs, and with which others: it runs where it can find something, for as long as it still does.

| stage | its tests run in | which tests |
|---|---|---|
| `change` | `make test`, `.ci/run`, `make test-all` | those that say within minutes whether a change is good |
| `landing` | `.ci/run`, `make test-all` | long histories, groups of servers, many processes |
| `rotated` | a quarter of them in each `.ci/run`, all in `make test-all` | planted bugs, faults of real servers |
| `release` | `make test-all` | another server of a kind, TLS, other logins; the tools that the tests use |

A test is of the stage `change`, unless a list here, the group of servers that it uses, or its conformance check says
otherwise. An entry of a list is the beginning of the id of a
test without `tests/`. The quarter is chosen by the hash of the commit: the same commit always gets the same, and a few
landings run all. The parts are those of `make test-all`.
"""

import os
import shlex
import sys
import zlib
from itertools import chain
from pathlib import Path

import pytest

PATH = pytest.StashKey[str]()
"""The id of a test without `tests/`, and without the group that pytest-xdist appends to it."""

STAGES = ("change", "landing", "rotated", "release")

LANDING = (
    "cli/test_elect.py::test_a_leader_that_was_stopped",
    "cli/test_elect.py::test_another_leads_soon_after_a_leader_was_killed",
    "cli/test_mcp.py::test_a_wait_that_is_cancelled_leaves_no_waiter",
    "cli/test_mcp.py::test_an_agent_that_goes_away_waits_no_longer[SIG",
    "cli/test_mcp.py::test_the_lease_of_a_killed_agent_is_free_after_its_time",
    "cli/test_mcp.py::test_two_agents_never_hold_a_name_at_once",
    "cli/test_screen.py::test_a_store",
    "cli/test_screen.py::test_a_terminal",
    "cli/test_screen.py::test_a_watch",
    "cli/test_screen.py::test_keys_move",
    "cli/test_screen.py::test_top_shows_trouble_names_queues_jobs_and_elections[80",
    "cli/test_why.py::test_held_by_a_silent_holder[postgresql",
    "cli/test_why.py::test_held_by_a_silent_holder[redis",
    "conformance/test_dynamodb.py",
    "conformance/test_folder.py",
    "conformance/test_get_lock.py",
    "conformance/test_memcached.py::TestServer::test_guarantee[early_release_survives_a_lost_reply",
    "conformance/test_memcached.py::TestServer::test_guarantee[holder_is_notified_of_a_revocation_request_once",
    "conformance/test_memcached.py::TestServer::test_guarantee[lease_of_a_dead_adopter",
    "conformance/test_memcached.py::TestServer::test_guarantee[lock_delay_follows_expiry_only",
    "conformance/test_memcached.py::TestServer::test_guarantee[release_returns_the_outcome",
    "conformance/test_memcached.py::TestServer::test_guarantee[renewed_lease_outlives_its_ttl",
    "conformance/test_memcached.py::TestServer::test_guarantee[second_adopter_holds_after_the_first",
    "conformance/test_memcached.py::TestServer::test_guarantee[silent_holder_loses_the_lease",
    "conformance/test_memcached.py::TestServer::test_guarantee[stuck_leader_is_replaced_at_max_hold",
    "conformance/test_memcached.py::TestServer::test_guarantee[unrenewed_lease_ends_when_extend_says",
    "conformance/test_mysql.py::TestFactory",
    "conformance/test_mysql.py::TestUrl::test_guarantee[second_adopter_holds_after_the_first",
    "conformance/test_nats.py::TestServer",
    "conformance/test_objects.py",
    "conformance/test_postgresql.py::TestPooler",
    "conformance/test_postgresql.py::TestServer::test_guarantee[second_adopter_holds_after_the_first",
    "conformance/test_postgresql.py::TestUser",
    "conformance/test_redis.py::TestBesideRedisPy",
    "conformance/test_redis.py::TestReplicated",
    "conformance/test_redis.py::TestServer::test_guarantee[second_adopter_holds_after_the_first",
    "conformance/test_redis.py::TestUser",
    "conformance/test_redis_clients.py::TestAsyncRedis",
    "conformance/test_redis_clients.py::TestRedis",
    "conformance/test_redis_groups.py",
    "conformance/test_rows.py::TestAwaited",
    "conformance/test_rows.py::TestPolled",
    "conformance/test_rows.py::TestWatched::test_guarantee[second_adopter_holds_after_the_first",
    "conformance/test_transport.py::test_every_request_is_sent",
    "console/test_browser.py",
    "core/test_late_releases.py::test_it_ends_with_the_client",
    "core/test_loops.py::test_nothing_is_said_in_development_mode",
    "demo/test_demo.py::test_coupons_and_pushes_are_exact",
    "docs/test_cli.py::test_every_script_prints_what_follows_it",
    "docs/test_coming_from.py::test_a_program_runs_as_it_stands",
    "docs/test_examples.py::test_a_scenario_loses_nothing_but_by_the_wrong_versions[default",
    "docs/test_readme.py::test_all_examples_run_over_a_quorum",
    "docs/test_readme.py::test_all_examples_run_over_etcd",
    "docs/test_readme.py::test_all_examples_run_over_memcached",
    "docs/test_readme.py::test_all_examples_run_over_mysql",
    "docs/test_readme.py::test_all_examples_run_over_zookeeper",
    "docs/test_readme.py::test_every_python_example_runs_as_it_stands",
    "docs/test_site.py::test_every_public_name_has_its_reference",
    "docs/test_site.py::test_no_table_shows_an_option_in_two_pieces",
    "docs/test_site.py::test_programs_find_every_page",
    "doctor/test_servers.py",
    "dynamodb/",
    "fencing/test_history.py::test_no_update_is_lost",
    "fencing/test_refusals.py::test_names_that_differ",
    "fencing/test_writers.py::TestSideBySide",
    "forms/test_forms.py::TestEtcd",
    "forms/test_forms.py::TestQuorum",
    "forms/test_forms.py::TestRedis::test_a_rolling_deploy",
    "forms/test_forms.py::TestServer",
    "forms/test_forms.py::TestZooKeeper",
    "frameworks/test_celery.py::test_a_store_that_does_not_answer",
    "frameworks/test_celery_processes.py::test_the_program",
    "frameworks/test_celery_processes.py::test_the_task",
    "frameworks/test_celery_processes.py::test_two_schedulers",
    "frameworks/test_deployment_pages.py",
    "frameworks/test_django_project.py",
    "frameworks/test_pages.py",
    "frameworks/test_pydantic_ai.py::test_processes",
    "frameworks/test_queues.py",
    "frameworks/test_sqlalchemy_page.py",
    "frameworks/test_workers.py",
    "hazards/test_imports.py::TestFirstUseOfAServer",
    "hazards/test_interrupts.py::test_an_interrupt_loses_no_event",
    "hazards/test_without_posix.py",
    "jobs/test_record.py::test_in_any_history_a_window_is_done_once",
    "jobs/test_windows.py::test_windows_follow_each_other_through_daylight_saving",
    "memcached/test_histories.py::test_every_history_keeps_the_promises",
    "memcached/test_life.py",
    "memcached/test_losses.py",
    "memcached/test_replies.py::test_a_thousand",
    "models/",
    "mysql/test_channel.py",
    "mysql/test_faults.py::test_a_promoted_replica",
    "mysql/test_faults.py::test_a_restart_of_a_server_that_may_forget",
    "mysql/test_get_lock.py",
    "packaging/test_contents.py::test_an_sdist_builds_the_same_wheel",
    "packaging/test_contents.py::test_the_index_will_take_them",
    "packaging/test_programs.py",
    "postgresql/test_advisory.py",
    "postgresql/test_channel.py::test_many_clients_behind_a_pooler_of_two",
    "postgresql/test_interrupts.py",
    "postgresql/test_schema.py::test_old_rows_are_swept_in_parts",
    "postgresql/test_schema.py::test_processes_race_the_migration",
    "postgresql/test_schema.py::test_starters_race_the_migration[30]",
    "properties/test_barging.py::test_a_store_answers_as_the_grant_table_does[sql",
    "properties/test_barging.py::test_every_step_of_every_history_is_right",
    "properties/test_mysql.py::test_the_store_answers_as_the_grant_table_does",
    "properties/test_simulated_server.py",
    "properties/test_sql_stores.py::test_the_store_on_",
    "properties/test_stores.py::test_a_store_answers_as_the_grant_table_does[promoted",
    "properties/test_stores.py::test_a_store_answers_as_the_grant_table_does[uptime",
    "redis/test_beside_redis_py.py::test_old_and_new",
    "redis/test_beside_redis_py.py::test_programs",
    "redis/test_parts.py::test_no_script",
    "redis/test_quorum.py::test_nodes_that_take_connections",
    "simulated/test_promises.py::test_every_fault_happens",
    "simulated/test_promises.py::test_holders_keep_their_leases_through_a_failover",
    "simulated/test_promises.py::test_promises_are_kept_in_long_queues",
    "simulated/test_promises.py::test_promises_are_kept_without",
    "simulated/test_promises.py::test_what_is_not_promised_is_seen_to_break",
    "simulated/test_quorum.py",
    "simulated/test_replay.py::test_a_broken_promise_is_told_small",
    "simulated/test_replay.py::test_a_shrunk_run_still_fails",
    "simulated/test_replay.py::test_another_process_gives_the_same_run",
    "simulated/test_replay.py::test_drift_beyond_the_allowance_is_seen",
    "simulated/test_replay.py::test_the_same_seed_gives_the_same_run",
    "stores/test_dropped_tables.py",
    "stores/test_releases_sent.py::test_a_cancellation",
    "stores/test_releases_sent.py::test_a_release_that_nobody_waits_for",
    "stores/test_releases_sent.py::test_an_interrupt_anywhere",
    "stores/test_renewing_apart.py::test_a_master",
    "stores/test_session_interrupts.py",
    "table/test_limit.py::test_no_window_of_a_calendar",
    "table/test_stock.py::test_no_unit_is_lost_doubled_or_refused_in_many_scenes",
    "table/test_stock.py::test_no_unit_is_lost_doubled_or_refused_though_cells_forget",
    "testing/test_plugin.py::test_processes_of_xdist_do_not_disturb_each_other",
    "testing/test_plugin.py::test_who_does_not_use_it_does_not_import_it",
    "zookeeper/test_interrupts.py",
    "zookeeper/test_proofs.py::test_regular_contacts_keep_a_proof_whole",
    "zookeeper/test_unreached.py",
)

ROTATED = (
    "cli/test_elect.py::test_a_planted_bug_is_found",
    "cli/test_mcp.py::test_a_planted_bug_is_found",
    "cli/test_screen.py::test_a_planted_bug",
    "console/test_planted.py",
    "console/test_timeline.py::test_a_planted_bug_is_found",
    "doctor/test_opening.py::test_a_planted_bug_is_found",
    "doctor/test_rules.py::test_a_planted_bug",
    "doctor/test_servers.py::test_a_planted_bug_is_found",
    "core/test_drain.py::test_planted_bugs_are_found",
    "core/test_handover.py::test_planted_bugs_in_the_protocol_are_found",
    "core/test_handover.py::test_planted_bugs_in_the_step_are_found",
    "core/test_history.py::test_a_planted_bug_is_noticed",
    "core/test_loops.py::test_a_planted_bug_is_found",
    "core/test_unrenewed.py::test_a_planted_bug",
    "dynamodb/test_table.py::test_a_planted_bug_is_found",
    "etcd/test_crowd.py",
    "etcd/test_faults.py",
    "fencing/test_history.py::test_a_planted_bug_is_found",
    "folder/test_table.py::test_a_planted_bug_is_found",
    "forms/test_mutants.py",
    "frameworks/test_fastapi.py::test_a_planted_bug_is_found",
    "frameworks/test_pydantic_ai.py::test_a_planted_bug_is_found",
    "frameworks/test_django.py::test_a_planted_bug_is_found",
    "frameworks/test_django_project.py::test_without_the_lock_it_is_noticed",
    "frameworks/test_celery.py::test_a_planted_bug",
    "frameworks/test_celery_beat.py::test_a_planted_bug",
    "hazards/test_rolling_restart.py::test_other_ends_are_found",
    "jobs/test_record.py::test_a_wrong_record_is_noticed",
    "memcached/test_histories.py::test_a_planted_flaw_is_noticed",
    "memcached/test_losses.py::test_a_planted_bug",
    "memcached/test_replies.py::test_ten_thousand",
    "metrics/test_operate.py::test_a_planted_bug_in_an_alert_is_found",
    "metrics/test_prometheus.py::test_a_planted_bug_is_found",
    "mysql/test_crowd.py",
    "mysql/test_patches.py::test_a_planted_bug_is_found",
    "nats/test_bucket.py::test_a_planted_bug_is_found",
    "mysql/test_get_lock_mutants.py",
    "mysql/test_get_lock_orphans.py",
    "mysql/test_promises.py::test_a_full_disk",
    "mysql/test_promises.py::test_a_restart_of_a_durable_server",
    "nats/test_bucket.py::test_a_planted_bug_that_sends_the_login",
    "objects/test_ending.py::test_a_planted_bug_is_found",
    "ordered/test_faults",
    "objects/test_bucket.py::test_a_planted_bug_is_found",
    "postgresql/test_advisory_mutants.py",
    "postgresql/test_advisory_orphans.py",
    "postgresql/test_faults",
    "postgresql/test_mutants.py",
    "properties/test_barging.py::test_a_wrong",
    "properties/test_mutants.py",
    "properties/test_mysql.py::test_a_short_history_notices_a_wrong_statement",
    "properties/test_mysql.py::test_a_wrong_statement_is_noticed",
    "properties/test_packed_queue.py::test_a_planted_bug_is_found",
    "properties/test_sql_stores.py::test_a_short_history_notices_wrong_sql",
    "properties/test_sql_stores.py::test_wrong_sql_is_noticed",
    "properties/test_stores.py::test_a_client_that_remembers_wrongly_is_noticed",
    "properties/test_stores.py::test_a_file_that_forgets_is_noticed",
    "properties/test_stores.py::test_a_store_with_a_wrong_table_is_noticed",
    "properties/test_stores.py::test_a_wrong_script_is_noticed",
    "redis/test_beside_redis_py.py::test_a_planted_bug_is_found",
    "redis/test_failover.py",
    "stores/test_releases_sent.py::test_a_planted_bug_is_found",
    "redis/test_cluster_releases.py::test_a_planted_bug_is_found",
    "redis/test_quarantine.py::test_all_slots_of_a_cluster_grant_again",
    "redis/test_quorum_chaos.py",
    "redis/test_faults",
    "redis/test_parts.py::test_one_script_for_all_is_noticed",
    "redis/test_resharding.py",
    "rows/test_chaos.py",
    "rows/test_proof.py::test_a_planted_bug_is_found",
    "simulated/test_mutants.py",
    "stores/test_sql_cells.py::test_a_planted_bug",
    "stores/test_sql_steps.py::test_a_planted_bug",
    "table/test_limit.py::test_a_planted_bug_is_found",
    "table/test_stock.py::test_a_planted_bug_is_found",
    "testing/test_lose_lease.py::test_a_broken_plugin_is_noticed",
    "zookeeper/test_faults.py",
    "zookeeper/test_emptied.py::test_a_planted_bug",
    "stores/test_dropped_tables.py::test_a_planted_bug",
)

RELEASE = (
    "bench/",
    "conformance/test_etcd.py::TestEnsemble",
    "conformance/test_postgresql.py::TestSocket",
    "conformance/test_postgresql.py::TestTls",
    "conformance/test_redis.py::TestSocket",
    "conformance/test_redis.py::TestTls",
    "conformance/test_redis.py::TestValkey",
    "conformance/test_nats.py::TestCluster",
    "conformance/test_redis_clients.py::TestAsyncMaster",
    "conformance/test_redis_clients.py::TestAsyncRedisCluster",
    "conformance/test_redis_clients.py::TestMaster",
    "conformance/test_redis_clients.py::TestRedisCluster",
    "conformance/test_zookeeper.py::TestEnsemble",
    "docs/test_examples.py::test_a_scenario_loses_nothing_but_by_the_wrong_versions[redis",
    "servers/",
    "zookeeper/test_sasl.py",
    "zookeeper/test_tls.py",
)

LISTED = {"landing": LANDING, "rotated": ROTATED, "release": RELEASE}

PARTS = {
    "simulation": ("simulated/",),
    "rules": ("properties/", "table/", "ordered/test_granting.py"),
    "conformance": ("conformance/",),
}
"""Which tests belong to which part. All others belong to the part `stores`."""

COMPUTING_PARTS = ("simulation", "rules")
"""Their tests only compute. They have the same results on every version of Python, and run at low priority."""

SMOKE = (
    "cli/test_bare.py",
    "conformance/test_memory.py",
    "conformance/test_redis.py::TestServer",
    "conformance/test_sqlite.py",
    "core/",
    "hazards/test_imports.py",
    "primitives/",
    "runtimes/",
    "sqlite/",
)
"""The tests of the stage `change` that also run on the other Pythons: imports, the core, memory, SQLite, one Redis
server, the command."""

SEEDED = ("simulated/test_promises.py::test_every_promise_is_kept",)
"""The tests of the stage `change` that do more with more seeds."""

PROTOCOL_ON = ("conformance/test_memory.py", "conformance/test_sqlite.py")
"""Where the checks of the protocol run before a release. Those that exercise the code of a store run on each store."""

GROUPS = {"etcd_ensemble", "nats_cluster", "redis_cluster", "redis_sentinel", "zookeeper_ensemble"}
"""The fixtures that start a group of servers: tests that use one are of the stage `landing`, at least."""

QUARTERS, QUARTER = 4, "TENURE_QUARTER"
"""How many quarters there are, and the variable that says which one runs."""


def marks_of(item: pytest.Item) -> list[str]:
    """Return the names of all marks of a test."""
    path = item.stash[PATH]
    stage = stage_of(item)
    marks = [stage, next((part for part, places in PARTS.items() if path.startswith(places)), "stores")]
    marks += ["smoke"] if stage == "change" and path.startswith(SMOKE) else []
    marks += ["seeds"] if path.startswith(SEEDED) else []
    return marks


def is_of_change(marks: str) -> bool:
    """Tell whether `-m` asks for tests of the first stage only: all, or some."""
    first, *others = marks.split(" and ")
    return first == "change" and not any(" or " in each for each in others)


def is_left_out(path: Path, marks: str) -> bool:
    """Tell whether `-m change` runs no test of a file, so that it need not be imported."""
    place = path.as_posix().rpartition("/tests/")[2]
    return is_of_change(marks) and any("::" not in each and place.startswith(each) for each in chain(*LISTED.values()))


def stage_of(item: pytest.Item) -> str:
    """Return the stage of a test: the last one that a list, a fixture or its check names."""
    path = item.stash[PATH]
    named = {stage for stage, places in LISTED.items() if path.startswith(places)}
    named |= {"landing"} if GROUPS.intersection(getattr(item, "fixturenames", ())) else set()
    callspec = getattr(item, "callspec", None)
    check = None if callspec is None else callspec.params.get("check")
    if getattr(check, "exercises", "store") == "protocol" and not path.startswith(PROTOCOL_ON):
        named.add("release")
    return max(named, key=STAGES.index, default="change")


def is_of_another_quarter(item: pytest.Item, quarter: int) -> bool:
    """Tell whether a test is a rotated one that does not run in this quarter."""
    return (
        item.get_closest_marker("rotated") is not None and zlib.crc32(item.stash[PATH].encode()) % QUARTERS != quarter
    )


def command_for(item: pytest.Item) -> str:
    """Return the command that runs a test alone."""
    names = ("CI", "TENURE_SIMULATION_SEEDS")
    settings = [f"{name}={shlex.quote(os.environ[name])}" for name in names if name in os.environ]
    python = os.path.relpath(sys.executable, Path.cwd()) if sys.prefix != sys.base_prefix else sys.executable
    return " ".join([*settings, python, "-m", "pytest", shlex.quote(f"tests/{item.stash[PATH]}")])


def unused(items: list[pytest.Item]) -> list[str]:
    """Return the entries that name no test: what they meant has another name by now."""
    paths = [item.stash[PATH] for item in items]
    entries = [*chain(*LISTED.values(), *PARTS.values()), *SMOKE, *SEEDED, *PROTOCOL_ON]
    return [entry for entry in entries if not any(path.startswith(entry) for path in paths)]
