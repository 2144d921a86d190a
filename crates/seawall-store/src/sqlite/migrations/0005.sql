-- A batch run's journal is a list of pieces that are written once and in order; what they say is the run's own business.
DROP TABLE journal;
DROP TABLE runs;
CREATE TABLE runs (
  run BLOB PRIMARY KEY,
  updated_at INTEGER NOT NULL
);
CREATE INDEX runs_old ON runs (updated_at);
CREATE TABLE journal (
  run BLOB NOT NULL,
  number INTEGER NOT NULL,
  content BLOB NOT NULL,
  PRIMARY KEY (run, number)
);
