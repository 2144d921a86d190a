-- Jobs. States: 0 queued, 1 running, 2 waiting, 3 done, 4 dead, 5 cancelled. `queued` and `waiting` are apart so that
-- looking for work never walks past what is not due; large values come last so that lists never read them.
CREATE TABLE jobs (
  row INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  state INTEGER NOT NULL,
  upstream TEXT NOT NULL,
  tenant TEXT NOT NULL,
  caller TEXT NOT NULL,
  priority INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  due INTEGER NOT NULL,
  claim INTEGER NOT NULL DEFAULT 0,
  token INTEGER NOT NULL DEFAULT 0,
  lease_until INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  cancel INTEGER NOT NULL DEFAULT 0,
  run_at INTEGER NOT NULL,
  expires_at INTEGER,
  created_at INTEGER NOT NULL,
  finished_at INTEGER,
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
  response_status INTEGER,
  response_cut INTEGER,
  response_headers TEXT,
  body BLOB,
  response_body BLOB
);
CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_queued ON jobs (upstream, priority DESC, turn) WHERE state = 0;
CREATE INDEX jobs_running ON jobs (lease_until) WHERE state = 1;
CREATE INDEX jobs_waiting ON jobs (due) WHERE state = 2;
CREATE INDEX jobs_listed ON jobs (state, id);
CREATE INDEX jobs_correlated ON jobs (correlation_id) WHERE correlation_id IS NOT NULL;
-- A key is free again once its job was given up on or cancelled.
CREATE UNIQUE INDEX jobs_dedup ON jobs (dedup) WHERE dedup IS NOT NULL;

-- Bodies too long to be moved each time a job changes its state.
CREATE TABLE bodies (
  row INTEGER PRIMARY KEY,
  body BLOB NOT NULL
);

-- Letters that failed the same way, with their number kept up to date: depths and lists need no counting.
CREATE TABLE issues (
  issue INTEGER PRIMARY KEY,
  upstream TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  class TEXT NOT NULL,
  code TEXT NOT NULL,
  severity TEXT NOT NULL,
  open INTEGER NOT NULL,
  total INTEGER NOT NULL,
  first_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  detail TEXT NOT NULL
);
CREATE UNIQUE INDEX issues_named ON issues (upstream, endpoint, class, code, severity);

-- Dead letters. Status: 0 kept, 1 replaying, 2 replayed.
CREATE TABLE letters (
  row INTEGER PRIMARY KEY,
  id BLOB NOT NULL,
  issue INTEGER NOT NULL,
  status INTEGER NOT NULL,
  dead_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  replays INTEGER NOT NULL DEFAULT 0,
  replayed_by BLOB,
  replayable INTEGER NOT NULL,
  door TEXT NOT NULL,
  tenant TEXT NOT NULL,
  caller TEXT NOT NULL,
  reason TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  last_attempt_at INTEGER,
  enqueued_at INTEGER NOT NULL,
  correlation_id TEXT,
  idempotency_key TEXT,
  url TEXT NOT NULL,
  detail TEXT NOT NULL,
  instructions TEXT NOT NULL,
  method TEXT NOT NULL,
  path TEXT NOT NULL,
  history TEXT NOT NULL,
  headers TEXT NOT NULL,
  body_cut INTEGER NOT NULL,
  body BLOB
);
CREATE UNIQUE INDEX letters_id ON letters (id);
CREATE INDEX letters_of_issue ON letters (issue, status, id);
CREATE INDEX letters_listed ON letters (status, id);
CREATE INDEX letters_expiring ON letters (expires_at);
