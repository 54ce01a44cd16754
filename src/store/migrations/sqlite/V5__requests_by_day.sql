-- The requests of each key on each of the last 31 UTC days, for people. No reference to `key`, as in `daily`.
CREATE TABLE key_day (
    day      INTEGER NOT NULL, -- since the Unix epoch
    key      TEXT    NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (day, key)
) STRICT, WITHOUT ROWID;
