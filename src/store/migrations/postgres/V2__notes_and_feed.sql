-- Every number is a bigint, so that one text of a statement serves SQLite as well.
ALTER TABLE guild ALTER COLUMN gone DROP DEFAULT;
ALTER TABLE guild ALTER COLUMN gone TYPE bigint USING gone::integer;
ALTER TABLE guild ALTER COLUMN gone SET DEFAULT 0;
ALTER TABLE guild ADD CHECK (gone IN (0, 1));

-- Warns and reviews are notes of two kinds: model/note.rs has their codes.
CREATE TABLE note (
    guild  bigint NOT NULL,
    kind   bigint NOT NULL,
    id     bigint NOT NULL CHECK (id >= 0), -- unique in its guild and kind
    member bigint NOT NULL,
    author text   NOT NULL,
    text   text   NOT NULL,
    number bigint NOT NULL -- a warn's end in Unix seconds, a review's stars
);
INSERT INTO note (guild, kind, id, member, author, text, number)
    SELECT guild, 1, id, member, author, reason, expires FROM warn;
INSERT INTO note (guild, kind, id, member, author, text, number)
    SELECT guild, 2, id, member, author, text, rating FROM review;
DROP TABLE warn;
DROP TABLE review;
ALTER TABLE note ADD PRIMARY KEY (guild, kind, id);
CREATE INDEX note_by_member ON note (guild, member, kind, id);
ALTER TABLE note ADD FOREIGN KEY (guild, member) REFERENCES member (guild, member) ON DELETE CASCADE;

-- What was changed, in the order of the commits: an advisory lock that is held until the commit numbers the rows without a
-- gap. (A sequence would give numbers out before their transactions commit, and a follower that had read number 8 could
-- miss number 7, which came later.) The newest row is never removed, so that no number is given twice.
DROP TABLE feed;
DROP TABLE change;
CREATE TABLE change (
    seq  bigint PRIMARY KEY,
    node bigint NOT NULL, -- whose points; 0: anybody's change
    kind bigint NOT NULL, -- 1 members, 2 guilds or keys, 3 everything, 4 days of keys that were given back
    ids  text   NOT NULL  -- of members or keys, a space between two of them
);
