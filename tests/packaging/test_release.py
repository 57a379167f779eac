"""A release comes from its tag, tested, and nobody's token is stored for it."""

import re
from pathlib import Path

import pytest

from scripts.test_all import PARTS

WORKFLOWS = Path(__file__).parents[2] / ".github" / "workflows"
RELEASE = (WORKFLOWS / "release.yml").read_text("utf-8")
JOBS = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", RELEASE.partition("\njobs:\n")[2], re.MULTILINE))


def test_what_is_published_was_built_once_and_tested() -> None:
    """The files that were checked are the files that are published, after every test there is."""
    assert JOBS.keys() == {"build", "check", "test", "publish"}
    assert "needs: [build, check, test]" in JOBS["publish"]
    assert f"part: [{', '.join(PARTS)}]\n" in JOBS["test"]
    assert "run: make test-all PART=${{ matrix.part }}\n" in JOBS["test"]
    assert RELEASE.count("make dist") == JOBS["build"].count("make dist") == 1
    assert "download-artifact" in JOBS["publish"]
    assert "checkout" not in JOBS["publish"]


def test_only_the_last_job_may_prove_who_it_is() -> None:
    """It is trusted by the index, signs what it publishes, and runs no code of this repository."""
    assert RELEASE.count("id-token: write") == JOBS["publish"].count("id-token: write") == 1
    assert "attestations: true" in JOBS["publish"]
    assert "environment:" in JOBS["publish"]
    assert " run:" not in JOBS["publish"]


@pytest.mark.parametrize("path", sorted(WORKFLOWS.iterdir()), ids=lambda path: path.name)
def test_a_workflow_stores_no_token_and_names_the_versions_that_it_uses(path: Path) -> None:
    """An action that changes, or a runner, could publish something else."""
    text = path.read_text("utf-8")
    assert "secrets." not in text
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [action for action in used if not re.search(r"@v\d", action)] == []
    assert "latest" not in text
