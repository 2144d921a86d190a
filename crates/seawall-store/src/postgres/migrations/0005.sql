-- Alarms that are raised. One process holds each, for all that share the store.
CREATE TABLE alarms (
  queue TEXT NOT NULL,
  severity TEXT NOT NULL,
  holder BYTEA NOT NULL,
  raised_at BIGINT NOT NULL,
  seen_at BIGINT NOT NULL,
  PRIMARY KEY (queue, severity)
);
