"""The command: python -m bench [NAMES...] [--quick] [--check] [--json FILE] [--write FILE]."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import bench.ensembles.hot
import bench.ensembles.pair
import bench.ensembles.queue
import bench.memcached
import bench.redis.barging
import bench.redis.handoff
import bench.redis.hot
import bench.redis.keep
import bench.redis.killed
import bench.redis.linger
import bench.redis.local_queue
import bench.redis.memory
import bench.redis.pair
import bench.redis.quorum_hot
import bench.redis.quorum_pair
import bench.redis.stock
import bench.redis.tasks64
import bench.redis.writers
import bench.sql.handoff
import bench.sql.hot
import bench.sql.pair
from bench import fair, handoff, killed, pair, start, tasks256, threads32
from bench.environment import machine, software
from bench.harness import FULL, QUICK, Report, Size
from bench.page import page

BENCHES: dict[str, Callable[[Size, Path], Report]] = {
    "pair": pair.run,
    "handoff": handoff.run,
    "threads32": threads32.run,
    "tasks256": tasks256.run,
    "fair": fair.run,
    "killed": killed.run,
    "start": start.run,
    "redis_pair": bench.redis.pair.run,
    "redis_tasks64": bench.redis.tasks64.run,
    "redis_take": bench.redis.stock.run_take,
    "redis_sale": bench.redis.stock.run_sale,
    "redis_hot": bench.redis.hot.run,
    "redis_barging": bench.redis.barging.run,
    "redis_handoff": bench.redis.handoff.run,
    "redis_killed": bench.redis.killed.run,
    "redis_keep": bench.redis.keep.run,
    "redis_memory": bench.redis.memory.run,
    "linger": bench.redis.linger.run,
    "redis_local_queues": bench.redis.local_queue.run,
    "redis_writers": bench.redis.writers.run,
    "quorum_pair": bench.redis.quorum_pair.run,
    "quorum_hot": bench.redis.quorum_hot.run,
    "zookeeper_pair": bench.ensembles.pair.zookeeper,
    "zookeeper_hot": bench.ensembles.hot.zookeeper,
    "zookeeper_queue": bench.ensembles.queue.zookeeper,
    "etcd_pair": bench.ensembles.pair.etcd,
    "etcd_hot": bench.ensembles.hot.etcd,
    "etcd_queue": bench.ensembles.queue.etcd,
    "postgresql_pair": bench.sql.pair.postgresql,
    "postgresql_hot": bench.sql.hot.postgresql,
    "postgresql_handoff": bench.sql.handoff.postgresql,
    "mysql_pair": bench.sql.pair.mysql,
    "mysql_hot": bench.sql.hot.mysql,
    "mysql_handoff": bench.sql.handoff.mysql,
    "memcached_pair": bench.memcached.run,
    "memcached_hot": bench.sql.hot.memcached,
    "memcached_handoff": bench.sql.handoff.memcached,
}


def main(arguments: Sequence[str] | None = None, size: Size | None = None) -> int:
    """Run benchmarks and print their reports; return 1 if --check was given and a bound was missed."""
    options = _parse(arguments)
    names = options.names or list(BENCHES)
    on, of = machine(), software()
    print(f"{of}; {on}\n", flush=True)
    reports = [run_one(name, size or (QUICK if options.quick else FULL)) for name in names]
    if options.json:
        found = {"machine": on, "software": of, "benches": {report.name: report.to_json() for report in reports}}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.write:
        text = page(reports, on, of, quick=options.quick, names=options.names, file=str(options.write))
        options.write.write_text(text, encoding="utf-8")
    missed = [bound for report in reports for bound in report.bounds if not bound.kept]
    return 1 if missed and options.check else 0


def run_one(name: str, size: Size) -> Report:
    """Run one benchmark in a folder of its own, and print its report."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        report = BENCHES[name](size, Path(folder))
    print(f"{report}\n({time.monotonic() - started:.1f} s)\n", flush=True)
    return report


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Tenure's locks in turns with their floors and with other locks.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="measure fewer and shorter rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound was missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write a page in Markdown to FILE")
    options = parser.parse_args(arguments)
    # Not `choices`: with it, argparse before Python 3.12 refuses an empty list of names.
    if unknown := [name for name in options.names if name not in BENCHES]:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(BENCHES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
