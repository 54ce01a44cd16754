-- Guilds get a small number of their own, so that a member's row does not repeat a 19-digit text.
-- A guild is never removed: its number stays its own for good.
CREATE TABLE guild (
    no   INTEGER PRIMARY KEY,
    id   TEXT    NOT NULL UNIQUE,
    name TEXT    NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0 CHECK (gone IN (0, 1)) -- 1: the bot left it
) STRICT;

CREATE TABLE member (
    guild  INTEGER NOT NULL REFERENCES guild (no),
    member INTEGER NOT NULL CHECK (member >= 0),
    name   TEXT    NOT NULL,
    points INTEGER NOT NULL,
    PRIMARY KEY (guild, member)
) STRICT, WITHOUT ROWID;

CREATE TABLE warn (
    guild   INTEGER NOT NULL,
    member  INTEGER NOT NULL,
    id      INTEGER NOT NULL CHECK (id >= 0),
    author  TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    expires INTEGER NOT NULL, -- Unix seconds
    PRIMARY KEY (guild, member, id),
    UNIQUE (guild, id),
    FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE review (
    guild  INTEGER NOT NULL,
    member INTEGER NOT NULL,
    id     INTEGER NOT NULL CHECK (id >= 0),
    author TEXT    NOT NULL,
    rating INTEGER NOT NULL CHECK (rating BETWEEN 1 AND 5),
    text   TEXT    NOT NULL,
    PRIMARY KEY (guild, member, id),
    UNIQUE (guild, id),
    FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Digests only: the key itself is nowhere.
CREATE TABLE key (
    id        TEXT    NOT NULL PRIMARY KEY,
    digest    BLOB    NOT NULL UNIQUE CHECK (length(digest) = 32),
    guild     INTEGER NOT NULL REFERENCES guild (no),
    name      TEXT    NOT NULL,
    tier      TEXT,             -- NULL: the default tier
    scope     TEXT    NOT NULL CHECK (scope IN ('read', 'write')),
    created   INTEGER NOT NULL, -- Unix seconds, as the two below
    expires   INTEGER,
    last_used INTEGER
) STRICT, WITHOUT ROWID;

-- What was changed, in the order of the commits. The newest row is never pruned, so a number is
-- never given twice.
CREATE TABLE change (
    seq     INTEGER PRIMARY KEY,
    node    INTEGER NOT NULL, -- who: drawn at each opening of the store
    kind    INTEGER NOT NULL, -- 1 members, 2 directory, 3 everything
    members BLOB              -- kind 1: ids, 8 bytes each, little endian
) STRICT;
