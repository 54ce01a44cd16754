-- The secret before the last rotation, while it still works; both columns, or neither.
ALTER TABLE key ADD COLUMN previous BLOB CHECK (length(previous) = 32);
ALTER TABLE key ADD COLUMN previous_until INTEGER CHECK ((previous IS NULL) = (previous_until IS NULL)); -- Unix seconds
CREATE UNIQUE INDEX key_by_previous ON key (previous) WHERE previous IS NOT NULL;

-- What was counted of each key on one UTC day. No reference to `key`: keys from a key file, and
-- those that an origin vouches for, are counted here too.
CREATE TABLE daily (
    key   TEXT    NOT NULL PRIMARY KEY,
    day   INTEGER NOT NULL, -- since the Unix epoch
    count INTEGER NOT NULL CHECK (count >= 0)
) STRICT, WITHOUT ROWID;

-- Finds the days long past without a look at every key.
CREATE INDEX daily_by_day ON daily (day);
