-- The tables of a lock file. Times are microseconds of the machine's boot clock.
-- A change of what is stored is a new form: see "The stored form" in ARCHITECTURE.md.

-- `meta` has one row. `boot` is the inode of this file, and the id of the boot whose clock the times belong to: after
-- a reboot every lease is void, and in a copy of the file no client has the leases any more.
-- `floor` is at least the counter of every name that was swept, so that tokens never repeat. `form` is the mark of the
-- stored form (contracts/forms.py). Whoever raises it also raises all versions, so that each client looks at it.
CREATE TABLE meta (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    boot  TEXT NOT NULL,
    floor INTEGER NOT NULL,
    form  TEXT NOT NULL
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

-- Cells (contracts/cells.py). Each write takes a larger version than any row ever had, and than the clock.
CREATE TABLE cells (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    name    TEXT NOT NULL UNIQUE,
    value   BLOB NOT NULL
);
