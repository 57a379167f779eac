"""Print what Tenure is tested with: Pythons, servers and clients. `--write` puts it into docs/compatibility.md.

The servers are those that the tests have started here (build/servers, written by `make test`), the clients those of
pyproject.toml: the oldest that an extra takes, and the one that the group `dev` pins.

Usage: python -m scripts.compatibility [--write]
"""

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
SERVERS = {
    "redis-server": "Redis",
    "etcd": "etcd",
    "java": "ZooKeeper",
    "postgres": "PostgreSQL",
    "pgbouncer": "PgBouncer",
    "mariadbd": "MariaDB",
    "memcached": "memcached",
    "nats-server": "NATS",
    "weed": "SeaweedFS",
}
"""The programs that tests start, and what they are."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def servers(folder: Path) -> str:
    """Return the table of the servers; raises SystemExit if the tests have not started all of them."""
    if missing := [program for program in SERVERS if not (folder / program).is_file()]:
        raise SystemExit(f"no test has started {', '.join(missing)} here: run `make test` first")
    said = {program: (folder / program).read_text("utf-8") for program in SERVERS}
    found = {program: re.findall(r"\d+(?:\.\d+)+", text) for program, text in said.items()}
    return table(("server", "tested"), [(SERVERS[program], versions[0]) for program, versions in found.items()])


def clients() -> str:
    """Return the table of the clients and other packages that extras need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["dependency-groups"]
    pins = [each for group in ("bench", "frameworks", "demo", "dev") for each in groups[group] if isinstance(each, str)]
    tested = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==([\w.]+)", "\n".join(pins).lower(), re.MULTILINE))
    needed = [(extra, each) for extra, all_ in project["project"]["optional-dependencies"].items() for each in all_]
    parts = [(extra, *re.findall(r"^([\w-]+)(?:\[\w+\])?(.*)", each)[0]) for extra, each in needed]
    rows = [(f"`tenure[{extra}]`", name, bounds, tested[name.lower()]) for extra, name, bounds in parts]
    return table(("extra", "package", "needs", "tested"), sorted(rows))


def pythons() -> str:
    """Return the table of the Pythons: those that are supported are tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    return table(("Python", "tested"), [(version, "yes") for version in versions])


def main(words: Sequence[str]) -> None:
    """Print or write the tables; that of the servers last, because it may be missing."""
    folder = ROOT / "build" / "servers"
    tables: dict[str, Callable[[], str]] = {"pythons": pythons, "clients": clients, "servers": lambda: servers(folder)}
    for name, make in tables.items():
        made = make()
        print(made)
        if "--write" in words:
            before, start, rest = PAGE.read_text("utf-8").partition(f"<!-- {name} -->\n")
            PAGE.write_text(f"{before}{start}\n{made}\n<!-- end -->{rest.partition('<!-- end -->')[2]}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
