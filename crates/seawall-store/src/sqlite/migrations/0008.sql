-- When a request that may not be sent twice was begun. A claim that is lost leaves it with its job, whose outcome nobody knows then.
ALTER TABLE claims ADD COLUMN begun_at INTEGER;
ALTER TABLE jobs ADD COLUMN begun_at INTEGER;
-- How the last twenty letters of a replay ended: a bit for each, set where it failed again.
ALTER TABLE replays ADD COLUMN recent INTEGER NOT NULL DEFAULT 0;
