"""Check the models: every rule is sound, and every rule is needed.

A model (*.pml) states a claim and names its variants: one that keeps all rules, in which a complete search has to
find no violation, and one for each rule that drops it, in which the claim has to break. Each line printed is one
search. The exit status is 1 if any verdict is not the expected one, or if a search without a violation proves
nothing, because it was cut short or saw suspiciously few states.

Usage: python -m models.run [--long] [--stories] [MODEL]...
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts import processes

HERE = Path(__file__).parent

OK = "ok"
DEPTH = 100_000
"""Steps: far more than any search here is deep."""

PACKAGES = ("spin", "gcc", "libc6-dev")
"""What Debian and Ubuntu call what is needed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one search may use, and how many run side by side."""

    megabytes: int
    seconds: float
    jobs: int


SHORT = Limits(megabytes=1200, seconds=300, jobs=2)
LONG = Limits(megabytes=6000, seconds=3600, jobs=1)


@dataclass(frozen=True, slots=True)
class Check:
    """One search, and what it must find: OK, or the name of the claim that breaks."""

    model: str
    variant: str
    bounds: str
    expected: str = OK
    least: int = 0
    """The fewest states that a complete search can have."""
    long: bool = False
    deep: bool = False
    """Take the first violation found depth first: there are too many states before the shortest."""

    @property
    def defines(self) -> list[str]:
        """The compiler options that make this variant of the model."""
        return [f"-D{name}" for name in [f"VARIANT={self.variant}", *self.bounds.split()]]


SMALL = "ASKS=2 RENEWALS=0 END=5"

CHECKS = (
    Check("fence", "FIRST_TOUCH", "CLIENTS=4 ROUNDS=2", least=1_500_000),
    Check("fence", "AFTER_READ", "CLIENTS=2 ROUNDS=1", "lost_update"),
    Check("fence", "ON_WRITE", "CLIENTS=2 ROUNDS=1", "lost_update"),
    Check("fence", "NO_FENCE", "CLIENTS=2 ROUNDS=1", "lost_update"),
    Check("heard", "SOUND", "NET=ASKING END=10", least=10_000),
    Check("heard", "SOUND", "NET=PUSHING END=10", least=10_000),
    Check("heard", "SHORT_TTL", "NET=ASKING END=10", "unheard"),
    Check("heard", "LATE_CHANNEL", "NET=PUSHING END=10", "unheard"),
    Check("quarantine", "MAX_TTL", "END=9 TAKEOVERS=2", least=150_000),
    Check("quarantine", "KNOWN", "END=9 TAKEOVERS=2", "overlap"),
    Check("quarantine", "ON_DISK", "END=9 TAKEOVERS=2", "overlap"),
    Check("quarantine", "LINKED_COPIES", "END=9 TAKEOVERS=2", "overlap"),
    Check("quarantine", "ALL_COPIES", "END=9 TAKEOVERS=2", least=1_200_000),
    Check("quarantine", "FRESH_MARKER", "END=9 TAKEOVERS=2", least=600_000),
    Check("tokens", "COUNTED", "ATTEMPTS=2 REPEATS=2 SPAN=2", least=300_000),
    Check("tokens", "COUNTED", "ATTEMPTS=3", least=2_000_000),
    Check("tokens", "DISORDER", "ATTEMPTS=2 REPEATS=1 SPREAD=3 SPAN=2", least=400_000),
    Check("tokens", "DISORDER", "ATTEMPTS=2 REPEATS=1 SPREAD=2 CLAIM=RESOURCE", least=200_000),
    Check("tokens", "AMNESIA", "ATTEMPTS=2 SPREAD=2 FORGETS=2", least=150_000),
    Check("tokens", "AMNESIA", "ATTEMPTS=2 SPREAD=2 FORGETS=1 CLAIM=RESOURCE", least=100_000),
    Check("tokens", "FORGOTTEN_ORDER", "ATTEMPTS=2 SPREAD=2 FORGETS=1", "older"),
    Check("tokens", "FORGOTTEN_ORDER", "ATTEMPTS=2 SPREAD=2 FORGETS=1 CLAIM=RESOURCE", "stale_write"),
    Check("tokens", "BITS_NOT_KEPT", "ATTEMPTS=3 SPREAD=1 FORGETS=1", "twice", deep=True),
    Check("tokens", "BITS_NOT_KEPT", "ATTEMPTS=3 SPREAD=1 FORGETS=1 CLAIM=RESOURCE", "lost_update", deep=True),
    Check("tokens", "PER_NODE", "ATTEMPTS=2", "twice"),
    Check("tokens", "PER_NODE", "ATTEMPTS=2 CLAIM=RESOURCE", "lost_update"),
    Check("tokens", "SAME_ID", "ATTEMPTS=2", "older", deep=True),
    Check("tokens", "UNCHECKED", "ATTEMPTS=2 REPEATS=1", "twice"),
    Check("tokens", "NOT_HELD", "ATTEMPTS=2 SPAN=2", "twice"),
    Check("tokens", "HALF", "ATTEMPTS=2 NODES=4", "twice"),
    Check("handoff", "SOUND", "ASKS=3 RENEWALS=0 END=6", least=5_000_000),
    Check("handoff", "SOUND", "ASKS=2 RENEWALS=1 END=5", least=3_000_000),
    Check("handoff", "VALID_FROM_PUSH", SMALL, "overlap"),
    Check("handoff", "VALID_FROM_REPLY", SMALL, "overlap"),
    Check("handoff", "NO_TOKEN_TEST", SMALL, "overlap"),
    Check("handoff", "PLAIN_DEQUEUE", SMALL, "orphan"),
    Check("handoff", "NO_TOMBSTONE", SMALL, "orphan"),
    Check("handoff", "RELEASE_KEEPS_PLACE", SMALL, "orphan"),
    Check("fence", "FIRST_TOUCH", "CLIENTS=4 ROUNDS=3", least=15_000_000, long=True),
    Check("heard", "SOUND", "NET=ASKING END=20", least=20_000, long=True),
    Check("heard", "SOUND", "NET=PUSHING END=20", least=20_000, long=True),
    Check("tokens", "COUNTED", "ATTEMPTS=2 REPEATS=1 NODES=4", least=1_500_000, long=True),
    Check("tokens", "AMNESIA", "ATTEMPTS=2 REPEATS=1 SPREAD=2 FORGETS=2", least=2_000_000, long=True),
    Check("handoff", "SOUND", "ASKS=2 RENEWALS=1 END=6", least=7_000_000, long=True),
    Check("handoff", "SOUND", "ASKS=3 RENEWALS=1 END=5", least=10_000_000, long=True),
    Check("handoff", "SOUND", "ASKS=3 RENEWALS=1 END=6", least=25_000_000, long=True),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search found: OK, the name of the claim that broke, or why it says nothing."""

    verdict: str
    states: int
    seconds: float = 0.0
    story: str = ""
    """The steps that lead to the violation."""

    def complaint(self, check: Check) -> str:
        """Return what is wrong with it, or nothing."""
        if self.verdict != check.expected:
            return f"expected {check.expected}"
        if self.verdict == OK and self.states < check.least:
            return f"expected at least {check.least:,} states: the model does less than it should"
        return ""


def judge(report: str) -> Finding:
    """Read what the verifier printed."""
    counted = re.search(r"([\d.e+]+) states, stored", report)
    finished = counted is not None and "errors: 0" in report
    if violated := re.search(r"assertion violated\W+(\w+)", report):
        verdict = violated[1]
    elif failed := re.search(r"^pan:\d+: (.+?)(?: \(at depth|$)", report, re.MULTILINE):
        verdict = failed[1]
    elif not finished or re.search(r"search depth too small|MEMLIM|out of memory|not completed", report):
        verdict = "cut short"
    else:
        verdict = OK
    return Finding(verdict, int(float(counted[1])) if counted else 0)


def search(check: Check, limits: Limits) -> Finding:
    """Compile the model in a folder of its own, and search it."""
    with tempfile.TemporaryDirectory(prefix="tenure-model-") as folder:
        source = HERE / f"{check.model}.pml"
        _run(folder, ["spin", "-a", *check.defines, str(source)])
        # Breadth first finds the shortest violation; depth first takes less memory where there is none.
        order = "-DNOFAIR" if check.expected == OK or check.deep else "-DBFS"
        options = ["-O2", "-w", "-DSAFETY", "-DCOLLAPSE", order, f"-DMEMLIM={limits.megabytes}"]
        _run(folder, ["gcc", *options, "-o", "pan", "pan.c"])
        started = time.monotonic()
        try:
            finding = judge(_run(folder, ["./pan", f"-m{DEPTH}"], limits.seconds))
        except subprocess.TimeoutExpired:
            finding = Finding("out of time", 0)
        seconds = time.monotonic() - started
        return Finding(finding.verdict, finding.states, seconds, _story(folder, check, source))


def _story(folder: str, check: Check, source: Path) -> str:
    trail = next(Path(folder).glob("*.trail"), None)
    if trail is None:
        return ""
    told = _run(folder, ["spin", "-t", "-k", trail.name, *check.defines, str(source)])
    return told.split("spin: ")[0].rstrip()


def _run(folder: str, command: list[str], seconds: float = 120) -> str:
    done = processes.run(
        command,
        cwd=folder,
        timeout=seconds,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode and command[0] in {"spin", "gcc"}:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
    return str(done.stdout)


def have_tools() -> bool:
    """Find spin and gcc, or install them where that is possible, or say what to install."""
    if all(map(shutil.which, ("spin", "gcc"))):
        return True
    if shutil.which("apt-get") and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
        print(f"Installing {', '.join(PACKAGES)} ...", flush=True)
        if _succeeds(install) or (_succeeds(["apt-get", "update", "-q"]) and _succeeds(install)):
            return True
    print("The models need the Spin model checker and a C compiler. Install them:", file=sys.stderr)
    print(f"\n    sudo apt-get install --no-install-recommends {' '.join(PACKAGES)}\n", file=sys.stderr)
    print("or, elsewhere, your system's packages for spin (https://spinroot.com) and gcc.", file=sys.stderr)
    return False


def _succeeds(command: list[str]) -> bool:
    return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) == 0


def check_all(checks: Sequence[Check], limits: Limits, *, stories: bool) -> int:
    """Search all, print a line for each, and return how many did not find what they must."""
    failures = 0

    def find(check: Check) -> Finding:
        return search(check, limits)

    print(f"{'model':10} {'variant':20} {'bounds':48} {'states':>12} {'seconds':>8}  verdict")
    with ThreadPoolExecutor(limits.jobs) as pool, processes.owned():  # it waits for threads whose searches have ended
        for check, finding in zip(checks, pool.map(find, checks), strict=True):
            complaint = finding.complaint(check)
            failures += bool(complaint)
            print(
                f"{check.model:10} {check.variant:20} {check.bounds:48} {finding.states:12,} {finding.seconds:8.1f}"
                f"  {finding.verdict}{f' !! {complaint}' if complaint else ', as expected'}",
                flush=True,
            )
            if finding.story and (stories or complaint):
                print(finding.story)
    return failures


def main(arguments: Sequence[str]) -> int:
    """Check what is asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.run", description="Check the models with Spin.")
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="fence, heard, quarantine, tokens, handoff (default: all)"
    )
    parser.add_argument("--long", action="store_true", help="also search with larger bounds: minutes, gigabytes")
    parser.add_argument("--stories", action="store_true", help="tell each violation, step by step")
    options = parser.parse_args(arguments)
    known = {check.model for check in CHECKS}
    if unknown := set(options.models) - known:
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if not have_tools():
        return 1
    chosen = [
        check for check in CHECKS if check.model in (options.models or known) and (options.long or not check.long)
    ]
    failures = check_all(chosen, LONG if options.long else SHORT, stories=options.stories)
    if failures:
        print(f"{failures} of {len(chosen)} searches did not find what they must.", file=sys.stderr)
    else:
        print(f"All {len(chosen)} verdicts are as expected.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
