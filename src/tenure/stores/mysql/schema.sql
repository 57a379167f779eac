-- The tables of Tenure in MySQL and MariaDB. Times are microseconds since 1970 by the database's clock.
-- `$` stands for the database and the prefix of all names, `$now` for the clock, `$timeline` for the identity of the
-- server. A change of what is stored is a new form: see "The stored form" in ARCHITECTURE.md.

-- One row a name; see SqlRow in ../sql/rows.py. All texts are bytes: a collation would take 'a' for 'A' or for 'a '.
CREATE TABLE IF NOT EXISTS $names (
    name          VARBINARY(1024) NOT NULL PRIMARY KEY,
    version       BIGINT          NOT NULL,
    counter       BIGINT          NOT NULL,
    plain         TINYINT         NOT NULL,
    request_id    VARBINARY(255)  NOT NULL,
    holder        BLOB            NOT NULL,
    ttl           BIGINT          NOT NULL,
    lock_delay    BIGINT          NOT NULL,
    granted_at    BIGINT          NOT NULL,
    expires_at    BIGINT          NOT NULL,
    last_released VARBINARY(255)  NOT NULL,
    tombstones    MEDIUMBLOB      NOT NULL,
    used_at       BIGINT          NOT NULL,
    idle_after    BIGINT          NOT NULL,
    state         LONGBLOB        NOT NULL,
    heads         BLOB            NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row. `floor` is at least the counter of every row that was deleted. `timeline` and `started` identify the server
-- that granted the names of this table; `longest_ttl` is the longest ttl of any client. `form` is the number of the stored
-- form, `needs` the release that a client needs to read it.
CREATE TABLE IF NOT EXISTS $meta (
    one               TINYINT         NOT NULL PRIMARY KEY,
    form              INT             NOT NULL,
    needs             VARBINARY(64)   NOT NULL,
    floor             BIGINT          NOT NULL,
    timeline          VARBINARY(1024) NOT NULL,
    started           BIGINT          NOT NULL,
    longest_ttl       BIGINT          NOT NULL,
    quarantined_since BIGINT          NOT NULL,
    quarantined_until BIGINT          NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Notifications that were not read yet. A client reads and deletes those of its channel.
CREATE TABLE IF NOT EXISTS $messages (
    id      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    channel VARBINARY(255) NOT NULL,
    payload BLOB           NOT NULL,
    sent_at BIGINT         NOT NULL,
    INDEX channel (channel)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO $meta VALUES (1, $form, $needed, 0, $timeline, $started, 0, 0, 0);

-- Cells: contracts/cells.py. The row of a removed cell stays for a while without content, so that its versions grow;
-- `floor` is at least the version of every row that was deleted. A row may be deleted after `kept_until`; 0: never.
CREATE TABLE IF NOT EXISTS $cells (
    name       VARBINARY(1024) NOT NULL PRIMARY KEY,
    version    BIGINT          NOT NULL,
    content    MEDIUMBLOB      NOT NULL,
    kept_until BIGINT          NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
