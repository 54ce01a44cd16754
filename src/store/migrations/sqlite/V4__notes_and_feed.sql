-- Warns and reviews are notes of two kinds: model/note.rs has their codes.
CREATE TABLE note (
    guild  INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    id     INTEGER NOT NULL CHECK (id >= 0), -- unique in its guild and kind
    member INTEGER NOT NULL,
    author TEXT    NOT NULL,
    text   TEXT    NOT NULL,
    number INTEGER NOT NULL, -- a warn's end in Unix seconds, a review's stars
    PRIMARY KEY (guild, kind, id),
    FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
INSERT INTO note (guild, kind, id, member, author, text, number)
    SELECT guild, 1, id, member, author, reason, expires FROM warn ORDER BY guild, id;
INSERT INTO note (guild, kind, id, member, author, text, number)
    SELECT guild, 2, id, member, author, text, rating FROM review ORDER BY guild, id;
DROP TABLE warn;
DROP TABLE review;
CREATE INDEX note_by_member ON note (guild, member, kind, id);

-- What was changed, in the order of the commits. The newest row is never removed, so that no number is given twice.
DROP TABLE change;
CREATE TABLE change (
    seq  INTEGER PRIMARY KEY,
    node INTEGER NOT NULL, -- whose points; 0: anybody's change
    kind INTEGER NOT NULL, -- 1 members, 2 guilds or keys, 3 everything, 4 days of keys that were given back
    ids  TEXT    NOT NULL  -- of members or keys, a space between two of them
) STRICT;
