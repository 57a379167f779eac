class ZnodeStat:
    czxid: int
    """The change that created the node."""
    mzxid: int
    """The last change of its data."""
    pzxid: int
    """The last change of its children."""
    ctime: int
    """The time of its creation, in milliseconds."""
    mtime: int
    """The time at which its data were last written."""
    version: int
    """How often its data were written."""
    cversion: int
    """How often a child was added or removed."""
    numChildren: int
    ephemeralOwner: int
    """The session that the node belongs to; 0 for none."""

class WatchedEvent:
    """The argument of a watch."""

    path: str | None
    """None: the watch was lost with its connection."""
