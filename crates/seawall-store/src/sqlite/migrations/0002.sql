-- What each schedule does for each subject, and how that goes. `next_retry_at` comes before `next_at` where there is one.
CREATE TABLE subjects (
  schedule TEXT NOT NULL,
  subject TEXT NOT NULL,
  source TEXT NOT NULL,
  next_at INTEGER NOT NULL,
  next_retry_at INTEGER,
  last_tick INTEGER,
  last_ok_at INTEGER,
  last_error TEXT,
  failures INTEGER NOT NULL DEFAULT 0,
  stopped TEXT,
  PRIMARY KEY (schedule, subject)
);
CREATE INDEX subjects_due ON subjects (coalesce(next_retry_at, next_at)) WHERE stopped IS NULL;

-- Idempotency keys. States: 0 in flight, 1 done, 2 unknown.
CREATE TABLE keys (
  scope BLOB PRIMARY KEY,
  fingerprint BLOB NOT NULL,
  state INTEGER NOT NULL,
  lease_until INTEGER,
  reservation INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  owner BLOB,
  response_status INTEGER,
  response_cut INTEGER,
  response_headers TEXT,
  response_body BLOB
);
CREATE INDEX keys_expiring ON keys (expires_at);

-- Replays of many letters. States: 0 running, 1 paused, 2 done, 3 cancelled.
CREATE TABLE replays (
  id BLOB PRIMARY KEY,
  state INTEGER NOT NULL,
  name TEXT NOT NULL,
  who TEXT NOT NULL,
  filter TEXT NOT NULL,
  upstreams TEXT NOT NULL,
  rate TEXT NOT NULL,
  canary INTEGER NOT NULL,
  reason TEXT,
  position BLOB,
  started INTEGER NOT NULL DEFAULT 0,
  worked INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  held_back INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
);
-- One at a time for each upstream.
CREATE TABLE replaying (
  upstream TEXT PRIMARY KEY,
  replay BLOB NOT NULL
);
-- Which replay a letter's job belongs to, so that its end is counted there.
ALTER TABLE letters ADD COLUMN replay BLOB;

-- Counters and latencies of a quarter of an hour.
CREATE TABLE rollups (
  start_at INTEGER NOT NULL,
  upstream TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  counts TEXT NOT NULL,
  latencies BLOB NOT NULL,
  PRIMARY KEY (start_at, upstream, endpoint)
);

-- What a process would forget.
CREATE TABLE snapshots (
  name TEXT PRIMARY KEY,
  at INTEGER NOT NULL,
  content BLOB NOT NULL
);

-- Who did what.
CREATE TABLE audit (
  number INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  who TEXT NOT NULL,
  action TEXT NOT NULL,
  detail TEXT NOT NULL
);

-- Batch runs: what became of each row, and which page comes next.
CREATE TABLE runs (
  run BLOB PRIMARY KEY,
  page TEXT,
  updated_at INTEGER NOT NULL
);
CREATE INDEX runs_old ON runs (updated_at);
CREATE TABLE journal (
  run BLOB NOT NULL,
  item BLOB NOT NULL,
  outcome TEXT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (run, item)
);

-- Errors that no rule names, for somebody to look at.
CREATE TABLE unnamed (
  fingerprint TEXT PRIMARY KEY,
  upstream TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  status TEXT NOT NULL,
  seen INTEGER NOT NULL,
  first_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  sample TEXT NOT NULL,
  named_as TEXT
);
CREATE INDEX unnamed_recent ON unnamed (last_at);
