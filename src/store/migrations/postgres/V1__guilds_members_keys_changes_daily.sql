-- The tables of the SQLite store at its version 2, with the same meaning. Texts that are ordered or
-- compared are so by their bytes, as there.

-- Guilds get a small number of their own, so that a member's row does not repeat a 19-digit text.
-- A guild is never removed: its number stays its own for good.
CREATE TABLE guild (
    no   bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id   text    COLLATE "C" NOT NULL UNIQUE,
    name text    NOT NULL,
    gone boolean NOT NULL DEFAULT false -- the bot left it
);

CREATE TABLE member (
    guild  bigint NOT NULL REFERENCES guild (no),
    member bigint NOT NULL CHECK (member >= 0),
    name   text   NOT NULL,
    points bigint NOT NULL,
    PRIMARY KEY (guild, member)
);

CREATE TABLE warn (
    guild   bigint NOT NULL,
    member  bigint NOT NULL,
    id      bigint NOT NULL CHECK (id >= 0),
    author  text   NOT NULL,
    reason  text   NOT NULL,
    expires bigint NOT NULL, -- Unix seconds
    PRIMARY KEY (guild, member, id),
    UNIQUE (guild, id),
    FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE
);

CREATE TABLE review (
    guild  bigint   NOT NULL,
    member bigint   NOT NULL,
    id     bigint   NOT NULL CHECK (id >= 0),
    author text     NOT NULL,
    rating smallint NOT NULL CHECK (rating BETWEEN 1 AND 5),
    text   text     NOT NULL,
    PRIMARY KEY (guild, member, id),
    UNIQUE (guild, id),
    FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE
);

-- Digests only: the key itself is nowhere.
CREATE TABLE key (
    id             text   COLLATE "C" PRIMARY KEY,
    digest         bytea  NOT NULL UNIQUE CHECK (length(digest) = 32),
    guild          bigint NOT NULL REFERENCES guild (no),
    name           text   NOT NULL,
    tier           text,            -- NULL: the default tier
    scope          text   NOT NULL CHECK (scope IN ('read', 'write')),
    created        bigint NOT NULL, -- Unix seconds, as the two below
    expires        bigint,
    last_used      bigint,
    -- The secret before the last rotation, while it still works; both columns, or neither.
    previous       bytea  CHECK (length(previous) = 32),
    previous_until bigint,
    CHECK ((previous IS NULL) = (previous_until IS NULL))
);
CREATE UNIQUE INDEX key_by_previous ON key (previous) WHERE previous IS NOT NULL;

-- What was counted of each key on one UTC day. No reference to `key`: keys from a key file, and
-- those that an origin vouches for, are counted here too.
CREATE TABLE daily (
    key   text   COLLATE "C" PRIMARY KEY,
    day   bigint NOT NULL, -- since the Unix epoch
    count bigint NOT NULL CHECK (count >= 0)
);
CREATE INDEX daily_by_day ON daily (day);

-- The number of the newest change: one row, for good. Whoever writes locks it first and holds it until
-- the commit, so writers take turns, and numbers become visible in their order and without a gap. A
-- sequence would give numbers out before their transactions commit, and a follower that had read
-- number 8 could miss number 7, which came later.
CREATE TABLE feed (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq bigint  NOT NULL
) WITH (fillfactor = 10); -- updated by every write: room for its versions on its own page
INSERT INTO feed (seq) VALUES (0);

-- What was changed, in the order of the commits. The newest row is never pruned.
CREATE TABLE change (
    seq     bigint   PRIMARY KEY,
    node    bigint   NOT NULL, -- who: drawn at each opening of the store
    kind    smallint NOT NULL, -- 1 members, 2 directory, 3 everything
    members bytea              -- kind 1: ids, 8 bytes each, little endian
);
