"""Peers with conflicting requirements. Each has a folder of its own, from which only its processes import.

The package of redlock-ng is called `redlock`, like that of redlock-py, and needs an older redis-py than the measured
one; aioredlock needs an abandoned aioredis. `python -m bench.peers.apart` installs them. A benchmark installs nothing:
it leaves out missing peers, and reports that.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

REDLOCK_NG = "redlock-ng"
AIOREDLOCK = "aioredlock"

PINS = {
    REDLOCK_NG: ("redlock-ng==2.0.4", "redis==5.3.1", "hiredis==3.5.0"),
    AIOREDLOCK: ("aioredlock==0.7.3", "aioredis==1.3.1", "hiredis==3.5.0"),
}
"""The pinned requirements of each peer; the first is the peer."""
MODULES = {REDLOCK_NG: "redlock", AIOREDLOCK: "aioredlock"}

TEST_TIMEOUT = 300.0


def folder(peer: str) -> Path:
    """Return the folder of a peer, in the virtual environment. Another pinned version has another folder."""
    return Path(sys.prefix) / "bench-apart" / "+".join(PINS[peer]).replace("==", "-")


def is_there(peer: str) -> bool:
    """Tell whether a peer is installed."""
    return folder(peer).is_dir()


def lacking(peer: str) -> str:
    """Return a note that a peer is not installed, and what installs it."""
    return f"{peer} is left out: it needs a folder of its own, which `python -m bench.peers.apart` makes if it can"


def versions() -> list[str]:
    """Return the names and versions of the installed peers, for people to read."""
    return [" with ".join(" ".join(pin.split("==")) for pin in PINS[peer][:2]) for peer in PINS if is_there(peer)]


def enter(peer: str) -> None:
    """Let this process import a peer from its folder. Raises RuntimeError if it has imported redis-py or hiredis."""
    if "redis" in sys.modules or "hiredis" in sys.modules:
        message = f"{peer} would use the redis-py that is already imported: start it in a fresh process"
        raise RuntimeError(message)
    sys.path.insert(0, str(folder(peer)))


def install(peer: str) -> None:
    """Install a peer if it is missing. Raises SubprocessError if that fails, or this Python cannot import it."""
    whole, half = folder(peer), folder(peer).with_suffix(".half")
    if whole.is_dir():
        return
    shutil.rmtree(half, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(half)]
    subprocess.run([*command, *PINS[peer]], check=True, timeout=TEST_TIMEOUT)
    importing = [sys.executable, "-c", f"import {MODULES[peer]}"]
    subprocess.run(importing, check=True, timeout=TEST_TIMEOUT, env={**os.environ, "PYTHONPATH": str(half)})
    half.rename(whole)


def main() -> None:
    """Install the peers that can be installed; the benchmarks leave out the others."""
    for peer in PINS:
        try:
            install(peer)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{peer} could not be installed: {error}")


if __name__ == "__main__":
    main()
