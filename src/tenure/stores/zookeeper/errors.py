"""The error mapping of the ZooKeeper store: errors of kazoo become replies or errors of Tenure."""

from enum import IntEnum

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.zookeeper.options import ZooKeeperAccess


class Code(IntEnum):
    """A negative reply of the server. Its meaning depends on the request."""

    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111


ANSWERS = frozenset(Code)

LOST = -4
"""The code of a lost connection."""

SASL_REQUIRED = -124
"""The server requires a SASL login; it also sends this code when a login failed."""

UNKNOWN = {
    LOST: "the connection was lost",
    -7: "it took too long",
    -112: "the session has ended",
    -118: "the session has moved to another server",
    -122: "it took too long",
}
"""The codes that leave the outcome unknown, with their reasons."""

PASSING = {
    -119: "this server is cut off from the others",
    -127: "the server is overloaded",
}
"""The codes of requests that were not carried out, but may succeed later, with their reasons."""

LASTING = {
    -6: "the servers are too old: they must be ZooKeeper 3.5 or later",
    -102: "this login lacks a permission. It needs read, write, create and delete at {root} and below, and where no "
    "such node exists yet, create above it; see the ACLs of these nodes, and the user and password in the URL",
    -114: "the ACL of new nodes is not valid; for acl=creator, the URL needs a user and a password",
    -115: "the login was refused; see the user and the password in the URL",
    SASL_REQUIRED: "the servers require a SASL login; give one in the URL",
    -125: "a quota of this path is exceeded; raise it",
}
"""The codes of errors that a repeated request cannot mend. {root} stands for the topmost node of all locks."""


def code_of(error: BaseException | None) -> int:
    """Return the code of an error of kazoo; 0 if it has none."""
    code = getattr(error, "code", 0)
    return code if isinstance(code, int) else 0


def answer_of(access: ZooKeeperAccess, error: Exception, *, writes: bool) -> Code:
    """Return the negative reply that an error stands for. Raises StoreError if it stands for none."""
    code = code_of(error)
    if code in ANSWERS:
        return Code(code)
    raise to_store_error(access, error, writes=writes) from error


def refused_login(title: str) -> StoreError:
    """Return the error of a login that failed."""
    return StoreError(f"{title} refused the login; see the user and the password in the URL")


def ended(access: ZooKeeperAccess, error: BaseException | None) -> StoreError:
    """Return the error of a client that kazoo has given up, for the reason `error` if there is one."""
    title = access.title
    if code_of(error) in LASTING:
        return _lasting(access, code_of(error))
    why = "" if error is None else f" ({type(error).__name__})"
    return StoreUnavailable(f"the connection to {title} ended{why}; try again")


def _lasting(access: ZooKeeperAccess, code: int) -> StoreError:
    return StoreError(f"{access.title}: {LASTING[code].format(root=access.root)}.")


def to_store_error(access: ZooKeeperAccess, error: Exception, *, writes: bool) -> StoreError:
    """Return the error of Tenure that stands for an error of kazoo."""
    title, code = access.title, code_of(error)
    if code in LASTING:
        return _lasting(access, code)
    if code in PASSING:
        return StoreUnavailable(f"{title}: {PASSING[code]}; try again.")
    why = UNKNOWN.get(code)
    if why is None:
        return StoreError(f"{title} replied with an error: {type(error).__name__}")
    if writes:
        return OutcomeUnknown(f"{title}: {why}, and the request may or may not have been carried out; try again.")
    return StoreUnavailable(f"{title}: {why}; try again.")
