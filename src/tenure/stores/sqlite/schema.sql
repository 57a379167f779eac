-- The tables of a lock file. Times are microseconds of the machine's boot clock.
-- Every change of the schema raises LAYOUT in opening.py.

-- `meta` has one row. `boot` is the inode of this file, and the id of the boot whose clock the times belong to: after
-- a reboot every lease is void, and in a copy of the file no client has the leases any more.
-- `floor` is at least the counter of every name that was swept, so that tokens never repeat.
CREATE TABLE meta (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    boot  TEXT NOT NULL,
    floor INTEGER NOT NULL
);

-- `names` has one row per name. `version` changes with every write. `counter` is the last fencing token, `state` the
-- rest of the name's state as JSON (codec.py), `idle_after` the time after which only the counter matters.
CREATE TABLE names (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    counter    INTEGER NOT NULL,
    idle_after INTEGER NOT NULL,
    state      TEXT NOT NULL
) WITHOUT ROWID;
