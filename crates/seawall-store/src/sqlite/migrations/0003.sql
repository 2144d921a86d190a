-- Each change of state pays for the indexes that name it. Lists of what is over have one; lists of the rest sort what is
-- open, or walk by id.
DROP INDEX jobs_listed;
CREATE INDEX jobs_listed ON jobs (state, id) WHERE state >= 3;
-- With `due`, so that the oldest of a long queue is found without reading its jobs.
DROP INDEX jobs_queued;
CREATE INDEX jobs_queued ON jobs (upstream, priority DESC, turn, due) WHERE state = 0;
