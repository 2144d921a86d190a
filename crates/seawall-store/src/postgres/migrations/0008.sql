-- By which rules a worker tells what may be repeated. A claim that is lost leaves them with its job: whether that was begun is known only
-- where what may not be repeated is the same by the rules of now.
ALTER TABLE claims ADD COLUMN rules BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN lost_under BIGINT;
