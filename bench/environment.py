"""The versions and the machine that the figures depend on."""

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

from bench.peers import apart
from tests.servers.redis import find_program
from tests.servers.redis import version as server_version

PEERS = (
    "filelock",
    "fasteners",
    "redis",
    "hiredis",
    "python-redis-lock",
    "pottery",
    "redlock-py",
    "uvloop",
    "kazoo",
    "aetcd",
    "psycopg",
    "PyMySQL",
    "asyncmy",
    "sqlalchemy",
    "PALs",
    "sqlalchemy-dlock",
    "tooz",
    "psycopg2-binary",
    "pymemcache",
    "sherlock",
    "pylibmc",
)


def software() -> str:
    """Return the versions of all measured software."""
    peers = ", ".join([*(f"{name} {version(name)}" for name in PEERS), *apart.versions()])
    server = ".".join(map(str, server_version(find_program())))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, SQLite {sqlite3.sqlite_version}, Redis server {server}, {peers}"


def machine() -> str:
    """Return a description of the machine and its present load."""
    kernel = platform.release().partition("-")[0]
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {kernel}, load average {load} before"


def _processor() -> str:
    """Return the model of the processor, or its architecture if the system does not name the model."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text("utf-8").splitlines() if listed.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
