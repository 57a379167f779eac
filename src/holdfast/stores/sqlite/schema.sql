-- The tables of an embedded lock file. Times are microseconds of the machine's boot clock.
-- Every change of this file's shape raises LAYOUT in opening.py.

-- One row. `boot` is the inode of this file, and the boot of the machine whose clock the times belong to: after a
-- reboot every lease is void, and in a copy nobody has its leases.
-- `floor` is no smaller than any counter of a name that was swept, so that tokens never repeat.
CREATE TABLE meta (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    boot  TEXT NOT NULL,
    floor INTEGER NOT NULL
);

-- One row a name. `version` changes with every write. `counter` is the last fencing token, `state` the rest of its state as JSON (codec.py),
-- `idle_after` the time after which nothing but the counter matters.
CREATE TABLE names (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    counter    INTEGER NOT NULL,
    idle_after INTEGER NOT NULL,
    state      TEXT NOT NULL
) WITHOUT ROWID;
