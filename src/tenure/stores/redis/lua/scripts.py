"""The Lua scripts, one per operation, with their digests, which are computed at import.

A script includes the parts of the grant table (`state.lua`, `queue.lua`) where it first needs them. So an uncontended
acquire or release is done before the script even looks at the queue.
"""

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files

from tenure.contracts import forms

_FOLDER = files("tenure.stores.redis.lua")


@dataclass(slots=True, frozen=True)
class Script:
    """One script: its text, and the digest under which a server caches it."""

    name: str
    text: str
    guarded: bool
    """Whether the script always reads and writes the marker, so that replicas must have its writes."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the digest."""
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    """Return the text of a script, with its includes expanded."""
    lines = (_FOLDER / f"{name}.lua").read_text("utf-8").splitlines()
    return "\n".join(_read(line.strip().removeprefix(INCLUDE)) if INCLUDE in line else line for line in lines)


def _script(name: str, flags: str = "", *, guarded: bool = False) -> Script:
    return Script(name, f"#!lua{flags}\n{FORM}\n{_read(name)}\n", guarded)


INCLUDE = "--@include "
"""The line that includes another file: as late as possible, because a closure that is never made costs nothing."""

FORM = f"local MARK, WRITES, READS = '{forms.mark()}', {forms.WRITES}, {forms.READS}"
"""What each script knows of the stored form: contracts/forms.py."""

ALLOW_OOM = " flags=allow-oom"
"""The flag of scripts that free memory, or must not fail when the server is out of memory."""

ACQUIRE = _script("acquire", guarded=True)
ACQUIRE_MANY = _script("acquire_many", guarded=True)
RELEASE = _script("release", ALLOW_OOM)
RENEW = _script("renew", ALLOW_OOM, guarded=True)
ADJUST = _script("adjust", ALLOW_OOM)
WITHDRAW = _script("withdraw", ALLOW_OOM)
RESIZE = _script("resize", ALLOW_OOM)
REQUEST_REVOCATION = _script("request_revocation", ALLOW_OOM)
REVOKE = _script("revoke", ALLOW_OOM)
INSPECT = _script("inspect", " flags=no-writes")
IN_USE = _script("in_use", " flags=no-writes")
CELL = _script("cell", guarded=True)
CELL_ADD = _script("cell_add", guarded=True)
END_QUARANTINE = _script("end_quarantine", ALLOW_OOM, guarded=True)

ALL = (
    ACQUIRE,
    ACQUIRE_MANY,
    RELEASE,
    RENEW,
    ADJUST,
    WITHDRAW,
    RESIZE,
    REQUEST_REVOCATION,
    REVOKE,
    INSPECT,
    IN_USE,
    CELL,
    CELL_ADD,
    END_QUARANTINE,
)
