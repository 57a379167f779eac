"""The handle of a detached lease: a line of text that names the lease, for whoever is to go on with it.

It has no part of the URL, and so no password. Whoever can use the store can go on with the lease by its handle.
"""

import base64
import binascii
import json
from dataclasses import astuple, dataclass

from tenure.contracts.limits import EVERYBODY, MOST_TOKENS, NAME_BYTES
from tenure.errors import UsageError

PREFIX = "tenure-1-"
"""How every handle of this form begins."""

LONGEST_HANDLE = 4096
"""The most characters of a handle."""

REASON_BYTES = 1024
"""The most bytes of a reason."""

FIELDS = (str, str, int, int, int, int, int)

NO_HANDLE = (
    "is no handle of a lease: give the whole line that `lease.detach()` returned or `tenure acquire` printed, of this "
    "or an earlier release"
)


@dataclass(slots=True, frozen=True)
class Handle:
    """The handle of a detached lease. Times in microseconds."""

    name: str
    """The name in the store, with the namespace."""
    request_id: str
    """The id by which the store knows the lease while it is detached. It is that of the handle, too."""
    token: int
    ttl: int
    weight: int = 1
    capacity: int = 1
    lock_delay: int = 0

    def text(self) -> str:
        """Return the handle as printable text, in one line."""
        fields = json.dumps(astuple(self), separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(fields).decode().rstrip("=")


def read_handle(text: object) -> Handle:
    """Return the handle that `Handle.text` wrote. Raises UsageError if the text is none."""
    if not isinstance(text, str):
        raise UsageError(f"a handle is a str, not a {type(text).__name__}")
    encoded = text.strip()
    if not encoded.startswith(PREFIX) or len(encoded) > LONGEST_HANDLE:
        raise UsageError(f"this text {NO_HANDLE}.")
    encoded = encoded.removeprefix(PREFIX)
    try:
        fields = json.loads(base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise UsageError(f"this text {NO_HANDLE}.") from None
    if not isinstance(fields, list) or tuple(map(type, fields)) != FIELDS:  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise UsageError(f"this text {NO_HANDLE}.")
    handle = Handle(*fields)  # pyright: ignore[reportUnknownArgumentType]
    numbers_fit = (
        0 < handle.token <= MOST_TOKENS
        and handle.ttl > 0
        and 0 < handle.weight <= handle.capacity <= EVERYBODY
        and handle.lock_delay >= 0
    )
    if not handle.name or len(handle.name) > 2 * NAME_BYTES + 1 or not handle.request_id or not numbers_fit:
        raise UsageError(f"this text {NO_HANDLE}.")
    return handle


def check_reason(reason: object) -> str:
    """Return `reason` if it is a str of up to 1024 bytes of UTF-8; else raise UsageError."""
    if not isinstance(reason, str):
        raise UsageError(f"a reason is a str, not a {type(reason).__name__}")
    if len(reason.encode("utf-8", "replace")) > REASON_BYTES:
        raise UsageError(f"a reason has up to {REASON_BYTES} bytes of UTF-8: say where to read the rest")
    return reason
