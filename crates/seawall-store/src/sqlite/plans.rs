//! Tests of query plans. With a wrong index, statements return the same result a thousand times slower.

use super::{fair_order, jobs, schema, upkeep};
use crate::model::job::{JobFilter, JobState};
use crate::model::page::PageWindow;
use crate::statements;
use crate::statements::jobs::Among;
use rusqlite::Connection;

/// Returns the query plan, one step per line.
fn plan(db: &Connection, statement: &str) -> String {
    let statement = format!("EXPLAIN QUERY PLAN {}", statement.replace('$', "?"));
    let mut explained = db.prepare(&statement).unwrap();
    let values = vec![0; explained.parameter_count()];
    let steps = explained.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

/// Returns two databases: one without statistics, and one with the statistics of a long life.
fn databases() -> [Connection; 2] {
    [(); 2].map(|()| {
        let db = Connection::open_in_memory().unwrap();
        schema::migrate(&db).unwrap();
        db
    })
}

fn list(state: JobState, among: Among) -> String {
    let filter = JobFilter { state: Some(state), ..JobFilter::default() };
    statements::jobs::list_statement(&filter, &PageWindow { after: None, limit: 50 }, among).0
}

#[test]
fn every_statement_about_many_jobs_uses_its_own_index_and_sorts_nothing() {
    let [fresh, old] = databases();
    // Mostly finished jobs, some running, few queued: statements look for the rare ones.
    old.execute_batch(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) \
         INSERT INTO jobs (id, waits, upstream, tenant, caller, priority, turn, due, run_at, created_at, progress, fingerprint, method, path, headers) \
         SELECT n, n % 400 = 200, 'u', 't', 'c', 0, n, n, n, n, '', x'', '', '', '' FROM n; \
         INSERT INTO queue (upstream, priority, turn, row, due) SELECT upstream, priority, turn, row, due FROM jobs WHERE row % 400 = 0; \
         INSERT INTO claims (row, token, lease_until) SELECT row, 1, row FROM jobs WHERE row % 400 = 100; \
         INSERT INTO ended (row, id, state, token, finished_at) SELECT row, id, 3, 1, row FROM jobs WHERE row % 100 > 0; ANALYZE;",
    )
    .unwrap();
    let claim = format!("SELECT queue.row {}", jobs::NEXT_IN_LANE);
    let expected: Vec<(&str, &str)> = vec![
        (&claim, "SEARCH queue USING PRIMARY KEY (upstream=?)\nSEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"),
        (jobs::MARK, "SEARCH queue USING PRIMARY KEY (upstream=? AND priority=? AND (turn,row)<(?,?))"),
        (jobs::UNQUEUE, "SEARCH queue USING PRIMARY KEY (upstream=? AND priority=? AND (turn,row)<(?,?))"),
        (fair_order::QUEUED, "SCAN queue\nSEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"),
        (upkeep::LATE, "SCAN claims\nSEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)\nUSE TEMP B-TREE FOR ORDER BY"),
        (upkeep::DUE, "SEARCH jobs USING INDEX jobs_waiting (due<?)"),
        (statements::jobs::WAITING_FOR, "SEARCH jobs USING INDEX jobs_waiting (due>?)"),
        (upkeep::NEXT, "SCAN jobs USING COVERING INDEX jobs_waiting"),
        (upkeep::LEASED, "SEARCH claims"),
        (upkeep::LANE, "SEARCH queue USING PRIMARY KEY (upstream>?)"),
        (upkeep::OLD, "SEARCH ended USING INDEX ended_listed (state=? AND id>? AND id<?)"),
        (statements::jobs::OLDEST, "SEARCH queue USING PRIMARY KEY"),
    ];
    for (statement, expected) in expected {
        for db in [&fresh, &old] {
            assert_eq!(plan(db, statement), expected, "{statement}");
        }
    }
    for db in [&fresh, &old] {
        let over = plan(db, &list(JobState::Done, Among::All));
        assert!(
            over.starts_with("SEARCH ended USING INDEX ended_listed (state=? AND id<?)\nSEARCH jobs USING INTEGER PRIMARY KEY"),
            "{over}"
        );
        let known = plan(db, &jobs::KNOWN);
        assert!(known.starts_with("SEARCH jobs USING INDEX jobs_dedup (dedup=?)"), "{known}");
        assert!(known.contains("SEARCH ended USING INDEX ended_listed (state=? AND id=?)"), "{known}");
        let counts = plan(db, statements::jobs::COUNTS);
        for place in ["SCAN queue", "SCAN claims", "COVERING INDEX jobs_waiting", "COVERING INDEX ended_listed"] {
            assert!(counts.contains(place), "{counts}");
        }
        for (state, place) in [(JobState::Queued, "SCAN queue"), (JobState::Running, "SCAN claims"), (JobState::Waiting, "jobs_waiting")] {
            let few = plan(db, &statements::jobs::few_statement(state));
            assert!(few.contains(place), "{few}");
            let sorted = plan(db, &list(state, Among::Few));
            assert!(sorted.contains(place.trim_start_matches("SCAN ")), "{sorted}");
            let walked = plan(db, &list(state, Among::All));
            assert!(walked.starts_with("SEARCH jobs USING INDEX jobs_id (id<?)") && !walked.contains("TEMP B-TREE"), "{walked}");
            let newest = plan(db, &list(state, Among::Newest));
            assert!(newest.contains("SEARCH jobs USING INDEX jobs_id (id<?)") && !newest.contains("TEMP B-TREE"), "{newest}");
        }
    }
}
