"""The command: python -m bench [NAMES...] [--quick] [--json FILE] [--write FILE].

It exits with 1 if a bound was missed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import plots
from bench.environment import machine, software
from bench.harness import FULL, QUICK, Report, Size
from bench.page import page
from bench.workloads import WORKLOADS


def main(arguments: Sequence[str] | None = None, size: Size | None = None) -> int:
    """Run benchmarks and print their reports; return 1 if a bound was missed."""
    options = _parse(arguments)
    names = options.names or list(WORKLOADS)
    on, of = machine(), software()
    print(f"{of}; {on}\n", flush=True)
    reports = [run_one(name, size or (QUICK if options.quick else FULL)) for name in names]
    if options.json:
        found = {"machine": on, "software": of, "benches": {report.name: report.to_json() for report in reports}}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.write:
        text = page(reports, on, of, quick=options.quick, names=options.names, file=str(options.write))
        options.write.write_text(text, encoding="utf-8")
        if options.write.parent.resolve() == plots.DOCS.resolve():
            plots.main()
    missed = [f"{report.name}: {bound}" for report in reports for bound in report.bounds if not bound.kept]
    print("\n".join(missed))
    return 1 if missed else 0


def run_one(name: str, size: Size) -> Report:
    """Run one benchmark in a folder of its own, and print its report."""
    started = time.monotonic()
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        report = workload.run(workload, size, Path(folder))
    print(f"{report}\n({time.monotonic() - started:.1f} s)\n", flush=True)
    return report


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Tenure's locks in turns with their floors and other locks; exit with 1 on a missed bound.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="measure fewer and shorter rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write a page in Markdown to FILE, and plots")
    options = parser.parse_args(arguments)
    # Not `choices`: with it, argparse before Python 3.12 refuses an empty list of names.
    if unknown := [name for name in options.names if name not in WORKLOADS]:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(WORKLOADS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
