"""The pages for those who come from other locks show programs that run: the old ones, ours, and the wrappers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import RedisServer

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    (page, number, code)
    for page in ("coming-from.md", "coming-from-redis-py.md")
    for number, code in enumerate(BLOCK.findall((DOCS / page).read_text("utf-8")))
]


@pytest.mark.parametrize(
    ("page", "code"),
    [(page, code) for page, _, code in PROGRAMS],
    ids=[f"{page}-{number}" for page, number, _ in PROGRAMS],
)
def test_a_program_runs_as_it_stands(page: str, code: str, redis_server: RedisServer, tmp_path: Path) -> None:
    """It prints what it says; ours with warnings as errors."""
    warnings = ["-W", "error"] if "tenure" in code else []
    script = tmp_path / "example.py"
    script.write_text(code.replace("redis://localhost", redis_server.url), "utf-8")
    done = subprocess.run(
        [sys.executable, *warnings, str(script)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    shown = re.findall(r"# -> (.*)$", code, re.MULTILINE)
    assert shown
    assert said[: len(shown)] == shown
