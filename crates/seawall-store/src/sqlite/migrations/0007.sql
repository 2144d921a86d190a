-- A job's row is what was asked for and what it has used up while it waits; where a job is, is told by what names it, so that to
-- claim one and to end it changes no long row. A job is in one place: `queue`, `claims`, `ended`, or here with `waits`.
-- In the queue, `cancel` is of a worker that vanished before it could.
CREATE TABLE queue (
  upstream TEXT NOT NULL,
  priority INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  row INTEGER NOT NULL,
  due INTEGER NOT NULL,
  cancel INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (upstream, priority DESC, turn, row)
) WITHOUT ROWID;
-- Small, and read whole: as many rows as workers hold.
CREATE TABLE claims (
  row INTEGER PRIMARY KEY,
  token INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  cancel INTEGER NOT NULL DEFAULT 0
);
-- States as ever: 3 done, 4 dead, 5 cancelled. What is missing of progress and history is as it was while the job waited. In the order
-- in which they end, which is that of a file that only grows; jobs of several workers in any other are pages that are split.
CREATE TABLE ended (
  number INTEGER PRIMARY KEY,
  row INTEGER NOT NULL,
  id BLOB NOT NULL,
  state INTEGER NOT NULL,
  token INTEGER NOT NULL,
  finished_at INTEGER NOT NULL,
  progress TEXT,
  history TEXT,
  error TEXT,
  response_status INTEGER,
  response_cut INTEGER,
  response_headers TEXT,
  response_body BLOB
);
INSERT INTO queue SELECT upstream, priority, turn, row, due, cancel FROM jobs WHERE state = 0;
INSERT INTO claims SELECT row, token, lease_until, cancel FROM jobs WHERE state = 1;
INSERT INTO ended (row, id, state, token, finished_at, progress, history, error, response_status, response_cut, response_headers,
  response_body) SELECT row, id, state, token, coalesce(finished_at, created_at), progress, history, error, response_status, response_cut,
  response_headers, response_body FROM jobs WHERE state >= 3;
CREATE UNIQUE INDEX ended_listed ON ended (state, id);

CREATE TABLE asked (
  row INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  waits INTEGER NOT NULL,
  upstream TEXT NOT NULL,
  tenant TEXT NOT NULL,
  caller TEXT NOT NULL,
  priority INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  due INTEGER NOT NULL,
  token INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  run_at INTEGER NOT NULL,
  expires_at INTEGER,
  created_at INTEGER NOT NULL,
  progress TEXT NOT NULL,
  error TEXT,
  dedup BLOB,
  fingerprint BLOB NOT NULL,
  idempotency_key TEXT,
  correlation_id TEXT,
  callback TEXT,
  origin TEXT,
  method TEXT NOT NULL,
  path TEXT NOT NULL,
  history TEXT NOT NULL DEFAULT '[]',
  headers TEXT NOT NULL,
  body BLOB
);
INSERT INTO asked SELECT row, id, state = 2, upstream, tenant, caller, priority, turn, due, token, crashes, run_at, expires_at, created_at,
  progress, error, dedup, fingerprint, idempotency_key, correlation_id, callback, origin, method, path, history, headers, body FROM jobs;
DROP TABLE jobs;
ALTER TABLE asked RENAME TO jobs;
CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_waiting ON jobs (due) WHERE waits = 1;
CREATE INDEX jobs_correlated ON jobs (correlation_id) WHERE correlation_id IS NOT NULL;
-- A key is free again once its job was given up on or cancelled.
CREATE UNIQUE INDEX jobs_dedup ON jobs (dedup) WHERE dedup IS NOT NULL;
