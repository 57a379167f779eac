"""What each error of kazoo means for a lock."""

from enum import IntEnum

from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.stores.zookeeper.options import ZooKeeperAccess


class Code(IntEnum):
    """An answer that says no; what it means depends on what was asked."""

    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111


ANSWERS = frozenset(Code)

LOST = -4
"""The connection was lost."""

SASL_REQUIRED = -124
"""Nobody is served without a SASL login; also the answer to a login that failed."""

UNKNOWN = {
    LOST: "the connection was lost",
    -7: "it took too long",
    -112: "the session has ended",
    -118: "the session has moved to another server",
    -122: "it took too long",
}
"""It may or may not have been carried out."""

PASSING = {
    -119: "this server is cut off from the others",
    -127: "the server is overloaded",
}
"""It was not carried out, and asking again later may help."""

LASTING = {
    -6: "the servers are too old: they must be ZooKeeper 3.5 or later",
    -102: "this login may not do that. It needs read, write, create and delete at {root} and below, and where there is "
    "no such node yet, create above it; see the ACLs of these nodes, and the user and password in the URL",
    -114: "the ACL of new nodes is not valid; for acl=creator, the URL needs a user and a password",
    -115: "the login was refused; see the user and the password in the URL",
    SASL_REQUIRED: "the servers want a SASL login; give one in the URL",
    -125: "a quota of this path is exceeded; raise it",
}
"""What asking again cannot mend. {root} stands for the node below which all is."""


def code_of(error: BaseException | None) -> int:
    """Return the code of an error of kazoo; 0 if it has none."""
    code = getattr(error, "code", 0)
    return code if isinstance(code, int) else 0


def answer_of(access: ZooKeeperAccess, error: Exception, *, writes: bool) -> Code:
    """Return the answer that an error is. Raises StoreError if it is none."""
    code = code_of(error)
    if code in ANSWERS:
        return Code(code)
    raise explain(access, error, writes=writes) from error


def refused_login(title: str) -> StoreError:
    """Return what users get whose login failed."""
    return StoreError(f"{title} refused the login; see the user and the password in the URL")


def ended(access: ZooKeeperAccess, error: BaseException | None) -> StoreError:
    """Return what users get when kazoo has given up, for this reason if there is one."""
    title = access.title
    if code_of(error) in LASTING:
        return _lasting(access, code_of(error))
    why = "" if error is None else f" ({type(error).__name__})"
    return StoreUnavailable(f"the connection to {title} has come to an end{why}; ask again")


def _lasting(access: ZooKeeperAccess, code: int) -> StoreError:
    return StoreError(f"{access.title}: {LASTING[code].format(root=access.root)}.")


def explain(access: ZooKeeperAccess, error: Exception, *, writes: bool) -> StoreError:
    """Return what an error means, as the error that users get."""
    title, code = access.title, code_of(error)
    if code in LASTING:
        return _lasting(access, code)
    if code in PASSING:
        return StoreUnavailable(f"{title}: {PASSING[code]}; ask again.")
    why = UNKNOWN.get(code)
    if why is None:
        return StoreError(f"{title} answered an error: {type(error).__name__}")
    if writes:
        return OutcomeUnknown(f"{title}: {why}, and the request may or may not have been carried out; ask again.")
    return StoreUnavailable(f"{title}: {why}; ask again.")
