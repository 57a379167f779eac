"""The rules for a lock file: the file system below it, and who may write it."""

from dataclasses import dataclass

from tenure.contracts.findings import Facts, Finding, Rule, Severity, fact

LEAST_SPACE = 16 * 2**20
"""How many bytes should be free: the file and its log need some, and SQLite some more while it writes."""


@dataclass(slots=True)
class LockFileFacts(Facts):
    """What is known of a lock file."""

    file_system: str | None = fact("the type of the file system")
    shared: bool | None = fact("whether other machines may share the file system")
    free: int | None = fact("the free space of the file system")
    writable: bool | None = fact("whether this user may write the file and its folder")
    exposed: bool | None = fact("whether any user may remove the file")


def network(facts: LockFileFacts) -> Finding | None:
    """Find a file system of the network."""
    if not facts.shared:
        return None
    return Finding(
        "lock-file-network",
        Severity.ERROR,
        facts.place,
        f"It is on a {facts.file_system} file system, which other machines may share.",
        "The machines see each other's locks late or never, and have other clocks. Tenure refuses such a file.",
        "sqlite:///var/lib/APP/locks.db on a local disk, or the URL of a server",
    )


def user_space(facts: LockFileFacts) -> Finding | None:
    """Find a file system of which nobody knows whether other machines share it."""
    if facts.shared or not (facts.file_system or "").startswith("fuse"):
        return None
    return Finding(
        "lock-file-user-space",
        Severity.WARNING,
        facts.place,
        f"It is on a {facts.file_system} file system, which may be shared with other machines.",
        "An embedded lock file coordinates one machine only.",
        "sqlite:///var/lib/APP/locks.db on a local disk",
    )


def space(facts: LockFileFacts) -> Finding | None:
    """Find a disk that is nearly full."""
    if facts.free is None or facts.free >= LEAST_SPACE:
        return None
    return Finding(
        "lock-file-space",
        Severity.WARNING,
        facts.place,
        f"Its file system has {facts.free} bytes left.",
        "On a full disk no lock can be taken or renewed.",
        "df -h, and remove what is not needed",
    )


def rights(facts: LockFileFacts) -> Finding | None:
    """Find a file that this user may not write."""
    if facts.writable is not False:
        return None
    return Finding(
        "lock-file-rights",
        Severity.ERROR,
        facts.place,
        "This user may not write the file or its folder.",
        "No lock can be taken: SQLite writes both.",
        "chown USER FOLDER FILE",
    )


def exposed(facts: LockFileFacts) -> Finding | None:
    """Find a file that others may remove."""
    if not facts.exposed:
        return None
    return Finding(
        "lock-file-exposed",
        Severity.WARNING,
        facts.place,
        "Any user may write its folder, so anybody may remove or replace the file.",
        "Those that have the old file open and those that open the new one do not exclude each other.",
        "chmod o-w FOLDER",
    )


RULES: tuple[Rule[LockFileFacts], ...] = (network, rights, user_space, space, exposed)
