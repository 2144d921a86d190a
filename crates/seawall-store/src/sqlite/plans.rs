//! Which index each statement uses. With another one they answer the same, a thousand times slower.

use super::{jobs, schema, turns, upkeep};
use crate::job::{Filter, State};
use crate::page::Window;
use crate::statements;
use crate::statements::jobs::Among;
use rusqlite::Connection;
use rusqlite::vtab::array::load_module;

/// How the planner means to answer, one step a line.
fn plan(db: &Connection, statement: &str) -> String {
    let statement = format!("EXPLAIN QUERY PLAN {}", statement.replace('$', "?"));
    let mut explained = db.prepare(&statement).unwrap();
    let values = vec![0; explained.parameter_count()];
    let steps = explained.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

/// The same, whether the planner knows nothing of the rows or what a long life has told it.
fn databases() -> [Connection; 2] {
    [(); 2].map(|()| {
        let db = Connection::open_in_memory().unwrap();
        schema::migrate(&db).unwrap();
        load_module(&db).unwrap();
        db
    })
}

fn list(state: State, among: Among) -> String {
    let filter = Filter { state: Some(state), ..Filter::default() };
    statements::jobs::list_statement(&filter, &Window { after: None, limit: 50 }, among).0
}

#[test]
fn every_statement_about_many_jobs_uses_its_own_index_and_sorts_nothing() {
    let [fresh, old] = databases();
    // A million finished, some running, none queued: what is rare here is what is looked for.
    old.execute_batch(
        "INSERT INTO jobs (id, state, upstream, tenant, caller, priority, turn, due, run_at, created_at, progress, fingerprint, method, path, headers) \
         WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) \
         SELECT n, CASE WHEN n % 100 = 0 THEN n / 100 % 4 ELSE 3 END, 'u', 't', 'c', 0, n, n, n, n, '', x'', '', '', '' FROM n; ANALYZE;",
    )
    .unwrap();
    let claim = format!("SELECT row {}", jobs::NEXT_IN_LANE);
    let expected: Vec<(&str, &str)> = vec![
        (&claim, "SEARCH jobs USING COVERING INDEX jobs_queued (upstream=?)"),
        (jobs::MARK, "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)\nLIST SUBQUERY 1\nSCAN rarray VIRTUAL TABLE INDEX 1:"),
        (turns::QUEUED, "SCAN jobs USING INDEX jobs_queued"),
        (upkeep::LATE, "SEARCH jobs USING INDEX jobs_running (lease_until<?)"),
        (upkeep::DUE, "SEARCH jobs USING INDEX jobs_waiting (due<?)"),
        (statements::jobs::WAITING_FOR, "SEARCH jobs USING INDEX jobs_waiting (due>?)"),
        (upkeep::NEXT, "SCAN jobs USING COVERING INDEX jobs_waiting"),
        (upkeep::LEASED, "SCAN jobs USING COVERING INDEX jobs_running"),
        (upkeep::LANE, "SEARCH jobs USING COVERING INDEX jobs_queued (upstream>?)"),
        (upkeep::OLD, "SEARCH jobs USING INDEX jobs_listed (state=? AND id>? AND id<?)"),
        (statements::jobs::OLDEST, "SEARCH jobs USING COVERING INDEX jobs_queued"),
        ("SELECT id, state, fingerprint FROM jobs WHERE dedup = ?", "SEARCH jobs USING INDEX jobs_dedup (dedup=?)"),
    ];
    for (statement, expected) in expected {
        for db in [&fresh, &old] {
            assert_eq!(plan(db, statement), expected, "{statement}");
        }
    }
    for db in [&fresh, &old] {
        let over = plan(db, &list(State::Done, Among::All));
        assert_eq!(over, "SEARCH jobs USING INDEX jobs_listed (state=? AND id<?)");
        let counts = plan(db, statements::jobs::COUNTS);
        for index in ["jobs_queued", "jobs_running", "jobs_waiting", "jobs_listed"] {
            assert!(counts.contains(&format!("USING COVERING INDEX {index}")), "{counts}");
        }
        for (state, index) in [(State::Queued, "jobs_queued"), (State::Running, "jobs_running"), (State::Waiting, "jobs_waiting")] {
            let few = plan(db, &statements::jobs::few_statement(state));
            assert!(few.contains(index), "{few}");
            let sorted = plan(db, &list(state, Among::Few));
            assert!(sorted.contains(index), "{sorted}");
            let walked = plan(db, &list(state, Among::All));
            assert_eq!(walked, "SEARCH jobs USING INDEX jobs_id (id<?)");
            let newest = plan(db, &list(state, Among::Newest));
            assert!(newest.contains("SEARCH jobs USING INDEX jobs_id (id<?)") && !newest.contains("TEMP B-TREE"), "{newest}");
        }
    }
}
