"""What the README and the guide show is what happens: examples run, and what is named exists."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.servers import EtcdServer, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, ZooKeeperServer

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PATHS = (
    "README.md",
    "docs/guide.md",
    "docs/console.md",
    "docs/jobs.md",
    "docs/counters.md",
    "docs/limits.md",
    "docs/stock.md",
    "docs/fencing.md",
    "docs/doctor.md",
    "docs/history.md",
    "docs/metrics.md",
)
PAGES = {name: (ROOT / name).read_text("utf-8") for name in PATHS}
FOLDERS = (".", "docs", "src/tenure/**", "packages/testing/src/**")
LINKED = [page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}/*.md"))]


def blocks(language: str, page: str = "README.md") -> list[str]:
    """Return the code blocks of a language, in order, without tests for pytest, which begin with the name of a file."""
    return re.findall(rf"^```{language}\n(?!# test_)(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


EXAMPLES = [(page, number) for page in PAGES for number in range(len(blocks("python", page)))]


def run_example(code: str, folder: Path, url: str, logged: str = "") -> str:
    """Run an example with warnings as errors, and compare what it prints with what stands behind its `# ->`.

    `logged` is what it writes to stderr, where each `...` stands for what differs from run to run. Return what it
    prints.
    """
    script = folder / "example.py"
    script.write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={"TENURE_URL": url, "PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(re.escape(logged).replace(re.escape("..."), ".*"), done.stderr), done.stderr
    assert done.stdout
    lines = iter(done.stdout.splitlines())
    for shown in re.findall(r"# -> (.*)$", code, re.MULTILINE):
        pattern = re.escape(shown).replace(re.escape("..."), ".*")
        assert any(re.fullmatch(pattern, line) for line in lines), (shown, done.stdout)
    return done.stdout


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_every_python_example_runs_as_it_stands(page: str, number: int, tmp_path: Path) -> None:
    """A newcomer can paste each example into a file and run it, with warnings as errors; it prints what is written."""
    run_example(blocks("python", page)[number], tmp_path, f"sqlite://{tmp_path}/locks.db")


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    """A newcomer can go through a page on one store: no example waits for a name that an earlier one left held."""
    url = f"sqlite://{tmp_path}/locks.db"
    with tenure.Client(url) as client:
        for number, code in enumerate(blocks("python", page)):
            assert not [name for name in client.names() if f'"{name}"' in code], number
            run_example(code, tmp_path, url)


CELLS = ("client.once(", "client.history(", "client.counter(", "client.limit(", "client.stock(")
"""What a store without cells lacks."""


def run_all(url: str, tmp_path: Path, *lacks: str, before: str = "") -> None:
    """Run all examples, one after another in one program, but those with what the store lacks, as the pages say."""
    code = [each for page in PAGES for each in blocks("python", page)]
    chosen = [each for each in code if not any(lack in each for lack in lacks)]
    run_example("\n".join([before, *chosen]), tmp_path, url)


def test_all_examples_run_in_one_process(tmp_path: Path) -> None:
    """Pasted one after another into one session, over a store that lives in it."""
    run_all("memory://", tmp_path)


def test_all_examples_run_over_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    """A server has all that is shown."""
    run_all(f"{redis_server.url}?guard=off", tmp_path)


PATIENT = "import tenure.stores.quorum.store\ntenure.stores.quorum.store.VOTE_TIMEOUT = 60.0"
"""A node of which a vote takes longer than this does not vote for a while, and the log says so. A machine that has
other work may take longer than the 0.3 seconds of the product, which are no part of what an example shows."""


def test_all_examples_run_over_a_quorum(redis_five: list[RedisServer], tmp_path: Path) -> None:
    """A quorum has all but semaphores, reader/writer locks and cells."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in redis_five)
    run_all(f"redlock://{hosts}?guard=observed", tmp_path, "semaphore(", *CELLS, before=PATIENT)


def test_all_examples_run_over_zookeeper(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """An ensemble has all that is shown."""
    run_all(f"{zookeeper_server.url}/docs", tmp_path)


def test_all_examples_run_over_etcd(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """An ensemble has all that is shown."""
    run_all(etcd_server.url, tmp_path)


def test_all_examples_run_over_postgresql(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """A database has all that is shown. With the strict guard it does no harm that the server forgets in a crash."""
    run_all(f"{postgres_server.create_database('docs')}?guard=strict", tmp_path)


def test_all_examples_run_over_mysql(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    """A database has all that is shown, and a client logs nothing of one that is set well."""
    ((before,),) = mariadb_server.execute("SELECT @@global.innodb_flush_log_at_trx_commit")
    mariadb_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    try:
        run_all(mariadb_server.create_database("docs"), tmp_path)
    finally:
        mariadb_server.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {before}")


def test_all_examples_run_over_memcached(memcached_server: MemcachedServer, tmp_path: Path) -> None:
    """A cache has locks, multilocks and elections, with one holder each."""
    lacks = ("semaphore(", "rwlock(", "linger=", "detect_deadlock", *CELLS)
    run_all(f"{memcached_server.url}/docs", tmp_path, *lacks)


def test_the_example_of_a_guard_for_redis_runs(redis_server: RedisServer, tmp_path: Path) -> None:
    """At a server of its own port."""
    (code,) = blocks("redis", "docs/fencing.md")
    run_example(code.replace("6379", str(redis_server.port)), tmp_path, f"sqlite://{tmp_path}/locks.db")


def test_there_are_examples_for_both_forms() -> None:
    """The README shows the library with and without asyncio, the first in about twenty lines."""
    first, second = blocks("python")[:2]
    assert "tenure.Client" in first
    assert "tenure.AsyncClient" in second
    assert len(first.splitlines()) <= 25


def test_the_sql_of_the_fence_refuses_a_late_writer() -> None:
    """The three statements of the page let a newer holder in, and shut out an older one from then on."""
    page = (ROOT / "docs" / "tokens.md").read_text("utf-8").partition("```sql\n")[2].partition("```")[0]
    touch, read, write = (statement.strip() for statement in page.split("\n") if statement)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE record (id INTEGER, fence INTEGER, body TEXT)")
    database.execute("INSERT INTO record VALUES (1, 0, 'empty')")

    def rows(statement: str, token: int, body: str = "") -> int:
        return database.execute(statement, {"id": 1, "token": token, "body": body}).rowcount

    assert rows(touch, token=33) == 1
    assert rows(touch, token=34) == 1
    assert database.execute(read, {"id": 1}).fetchone() == ("empty",)
    assert rows(write, token=33, body="late") == 0
    assert rows(touch, token=33) == 0
    assert rows(write, token=34, body="right") == 1
    assert database.execute(read, {"id": 1}).fetchone() == ("right",)
    database.close()


def test_the_site_begins_as_the_readme() -> None:
    """The first page of the site names the stores that the README names."""
    index = (ROOT / "docs/index.md").read_text("utf-8")
    begin = re.search(r"^Tenure gives .*?$\n\n", README, re.MULTILINE | re.DOTALL)
    assert begin is not None
    assert begin[0] in index


def test_every_make_target_and_link_that_is_named_exists() -> None:
    """No command of the README and no link of a page leads nowhere."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for page in LINKED:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert "://" in link or page.parent.joinpath(link).exists(), (page, link)
