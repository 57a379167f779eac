"""What the pages about stores show is what happens: URLs are understood, and the guard of etcd guards."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import tenure
from tenure.stores.urls import store_source
from tests.servers.etcd import EtcdServer

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["quorum.md", "ensembles.md", "memcached.md", "objects.md", "dynamodb.md"])
def test_every_way_to_name_a_store_is_understood(page: str) -> None:
    """A client can be made as the page says; nothing is connected."""
    names: dict[str, object] = {"tenure": tenure, "redis": redis}
    exec(BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))[0], names)  # noqa: S102 - it is our own page
    assert isinstance(names["client"], tenure.Client)


def test_every_url_of_the_readme_is_understood() -> None:
    """Each URL of the table of stores names one."""
    table = (ROOT / "README.md").read_text("utf-8").partition("## Stores")[2].partition("\n\nWithout a URL")[0]
    urls = re.findall(r"`(\w[\w+]*:[^`]+)`", table)
    assert len(urls) > 10
    for url in urls:
        whole = f"{url}host" if url.endswith("s://") else url  # the page leaves the host of some out
        assert store_source(whole).title, url


def test_the_guard_of_etcd_guards(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """The example writes while it holds the lock, and nothing once the lease is over."""
    host, port = etcd_server.address
    code = BLOCK.findall((ROOT / "docs" / "ensembles.md").read_text("utf-8"))[1]
    code = code.replace("10.0.0.1:2379", f"{host}:{port}").replace("10.0.0.1,10.0.0.2,10.0.0.3", f"{host}:{port}")
    late = 'try:\n    put_guarded(guard, b"accounts/anna", b"80")\nexcept RuntimeError as error:\n    print(error)\n'
    script = tmp_path / "example.py"
    script.write_text(code + late, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the lease is over, and nothing was written\n"), done.stderr
