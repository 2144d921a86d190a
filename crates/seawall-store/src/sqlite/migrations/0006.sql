-- Alarms that are raised. One process holds each, for all that share the store.
CREATE TABLE alarms (
  queue TEXT NOT NULL,
  severity TEXT NOT NULL,
  holder BLOB NOT NULL,
  raised_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,
  PRIMARY KEY (queue, severity)
);
