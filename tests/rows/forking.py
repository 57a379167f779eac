"""A program that forks while it holds a lease, on any store over rows."""

import subprocess
import sys

FORKED = """
import os, sys, tenure
client = tenure.Client(sys.argv[1])
with client.lock("a") as lease:
    pid = os.fork()
    if pid == 0:
        with client.lock("b", timeout=20):
            print("child locks", client.lock("a").try_acquire(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    lease.check()
print(lease.release().name)
client.close()
"""


def assert_a_forked_child_has_connections_of_its_own(url: str) -> None:
    """Let a child lock another name, and be refused the name of its parent, whose lease goes on."""
    command = [sys.executable, "-W", "error", "-c", FORKED, url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.stdout.splitlines(), said.stderr, said.returncode) == (["child locks None", "RELEASED"], "", 0)
