-- Roll-ups as each process counted them, written whole: nobody adds to what somebody else may have written. No version has
-- put anything into the table that this replaces.
DROP TABLE rollups;
CREATE TABLE rollups (
  start_at INTEGER NOT NULL,
  upstream TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  writer BLOB NOT NULL,
  counts TEXT NOT NULL,
  latencies BLOB NOT NULL,
  PRIMARY KEY (start_at, upstream, endpoint, writer)
);

-- What an unnamed error is recognised by, so that it can still be named by a later process.
ALTER TABLE unnamed ADD COLUMN member TEXT;
ALTER TABLE unnamed ADD COLUMN value TEXT;
