-- A batch run's journal is a list of pieces that are written once and in order; what they say is the run's own business.
DROP TABLE journal;
DROP TABLE runs;
CREATE TABLE runs (
  run BYTEA PRIMARY KEY,
  updated_at BIGINT NOT NULL
);
CREATE INDEX runs_old ON runs (updated_at);
CREATE TABLE journal (
  run BYTEA NOT NULL,
  number BIGINT NOT NULL,
  content BYTEA NOT NULL,
  PRIMARY KEY (run, number)
);
