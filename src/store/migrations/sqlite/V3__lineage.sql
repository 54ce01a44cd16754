-- Under which lineage of the file a change was made (PRAGMA user_version of the file at that time).
ALTER TABLE change ADD COLUMN lineage INTEGER;
