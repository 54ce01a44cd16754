-- The requests of each key on each of the last 31 UTC days, for people. No reference to `key`, as in `daily`.
CREATE TABLE key_day (
    day      bigint NOT NULL, -- since the Unix epoch
    key      text   COLLATE "C" NOT NULL,
    requests bigint NOT NULL,
    PRIMARY KEY (day, key)
);
