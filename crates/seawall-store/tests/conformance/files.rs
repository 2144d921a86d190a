//! The database file and its log: complete after use, or refused and left unchanged.

use crate::stage::{NOON, Stage};
use rusqlite::Connection;
use seawall_store::location::Location;
use seawall_store::{Error, Store};
use std::path::{Path, PathBuf};

fn beside(database: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", database.display()))
}

async fn open(database: &Path) -> Result<Store, Error> {
    Store::open(&Location::Sqlite(database.to_owned())).await
}

async fn queued(store: &Store) -> u64 {
    store.job_counts().await.unwrap().by_state[0]
}

/// Creates jobs, on a database of its own.
async fn maker() -> Stage {
    let folder = tempfile::tempdir().unwrap();
    Stage::at(Location::Sqlite(folder.path().join("maker.db")), Some(folder)).await
}

/// Creates a database with fifty jobs.
async fn filled(folder: &Path) -> (PathBuf, Store, Stage) {
    let database = folder.join("seawall.db");
    let store = open(&database).await.unwrap();
    let stage = maker().await;
    store.enqueue((0..50).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    (database, store, stage)
}

/// Copies the files of a database in their current state, as after a kill or an incomplete copy.
fn copied(database: &Path, to: &Path, endings: &[&str]) -> PathBuf {
    let copy = to.join("copy.db");
    for ending in endings {
        std::fs::copy(beside(database, ending), beside(&copy, ending)).unwrap();
    }
    copy
}

#[tokio::test]
async fn a_closed_database_is_one_file_with_everything_in_it() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, store, _) = filled(folder.path()).await;
    store.close().await.unwrap();
    let copy = open(&copied(&database, other.path(), &[""])).await.unwrap();
    assert_eq!((queued(&copy).await, copy.lost_its_log()), (50, false));
}

#[tokio::test]
async fn a_copy_without_its_log_is_told_of_and_one_with_its_log_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (database, _store, _) = filled(folder.path()).await;
    for (endings, lost) in [(&[""][..], true), (&["", "-wal"], false)] {
        let other = tempfile::tempdir().unwrap();
        let copy = open(&copied(&database, other.path(), endings)).await.unwrap();
        assert_eq!(copy.lost_its_log(), lost, "{endings:?}");
        if !lost {
            assert_eq!(queued(&copy).await, 50);
        }
    }
}

#[tokio::test]
async fn an_empty_database_beside_a_full_log_is_refused_and_left_alone() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, _store, _) = filled(folder.path()).await;
    let copy = copied(&database, other.path(), &["-wal"]);
    let log = std::fs::read(beside(&copy, "-wal")).unwrap();
    for missing in [true, false] {
        if !missing {
            std::fs::write(&copy, b"").unwrap();
        }
        let refused = open(&copy).await.unwrap_err();
        assert!(matches!(&refused, Error::Damaged(why) if why.contains("its log")), "{refused}");
        assert_eq!(std::fs::read(beside(&copy, "-wal")).unwrap(), log);
    }
}

#[tokio::test]
async fn a_damaged_database_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (database, store, stage) = filled(folder.path()).await;
    store.close().await.unwrap();
    store.enqueue(vec![stage.job("u")], NOON).await.unwrap();
    for damage in [0..64, 4096..4200, 8192..8300] {
        let other = tempfile::tempdir().unwrap();
        let copy = copied(&database, other.path(), &["", "-wal"]);
        let mut bytes = std::fs::read(&copy).unwrap();
        bytes[damage].fill(0xA5);
        std::fs::write(&copy, &bytes).unwrap();
        let log = std::fs::read(beside(&copy, "-wal")).unwrap();
        if let Err(refused) = open(&copy).await {
            assert!(!refused.passes(), "{refused}");
            assert!(std::fs::read(&copy).unwrap() == bytes, "the database was written to");
            assert!(std::fs::read(beside(&copy, "-wal")).unwrap() == log, "the log was written to");
        }
    }
    let newer = tempfile::tempdir().unwrap();
    let copy = copied(&database, newer.path(), &["", "-wal"]);
    Connection::open(&copy).unwrap().pragma_update(None, "user_version", 9999).unwrap();
    let bytes = std::fs::read(&copy).unwrap();
    assert!(matches!(open(&copy).await, Err(Error::NewerSchema { found: 9999, .. })));
    assert!(std::fs::read(&copy).unwrap() == bytes);
}

#[tokio::test]
async fn a_log_that_is_removed_underneath_is_noticed_and_nothing_is_lost() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, store, stage) = filled(folder.path()).await;
    std::fs::remove_file(beside(&database, "-wal")).unwrap();
    let refused = store.enqueue(vec![stage.job("u")], NOON).await.unwrap_err();
    assert!(matches!(&refused, Error::Unavailable(why) if why.contains("restart Seawall")), "{refused}");
    let copy = open(&copied(&database, other.path(), &[""])).await.unwrap();
    assert_eq!(queued(&copy).await, 50, "what was acknowledged before is in the database itself");
}

#[tokio::test]
async fn a_log_or_database_that_is_replaced_underneath_is_noticed_too() {
    for (ending, jobs) in [("-wal", 50), ("", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let (database, store, stage) = filled(folder.path()).await;
        std::fs::remove_file(beside(&database, ending)).unwrap();
        std::fs::write(beside(&database, ending), b"").unwrap();
        let refused = store.enqueue(vec![stage.job("u")], NOON).await.unwrap_err();
        assert!(matches!(&refused, Error::Unavailable(why) if why.contains("restart Seawall")), "{refused}");
        if jobs > 0 {
            let other = tempfile::tempdir().unwrap();
            assert_eq!(queued(&open(&copied(&database, other.path(), &[""])).await.unwrap()).await, jobs);
        }
    }
}

#[tokio::test]
async fn a_restore_can_be_undone_and_leaves_no_foreign_log() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, store, stage) = filled(folder.path()).await;
    let copy = other.path().join("backup.db");
    Store::back_up(&database, &copy).unwrap();
    store.enqueue((0..10).map(|_| stage.job("u")).collect(), NOON).await.unwrap();
    // The files as after a kill.
    let left = tempfile::tempdir().unwrap();
    let killed = copied(&database, left.path(), &["", "-wal"]);
    let aside = Store::restore(&killed, &copy).unwrap().unwrap();
    assert_eq!(queued(&open(&killed).await.unwrap()).await, 50);
    let undone = tempfile::tempdir().unwrap();
    let target = undone.path().join("seawall.db");
    Store::restore(&target, &aside).unwrap();
    assert_eq!(queued(&open(&target).await.unwrap()).await, 60, "what was moved aside has its log");
    let lone = tempfile::tempdir().unwrap();
    let lone = copied(&database, lone.path(), &["-wal"]);
    Store::restore(&lone, &copy).unwrap();
    Store::check(&lone).unwrap();
    assert_eq!(queued(&open(&lone).await.unwrap()).await, 50, "the log of the database that is gone is not its own");
}

#[tokio::test]
async fn a_link_to_a_database_is_the_database() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, store, _) = filled(folder.path()).await;
    let link = other.path().join("link.db");
    std::os::unix::fs::symlink(&database, &link).unwrap();
    assert!(store.claim_serving().unwrap());
    let second = open(&link).await.unwrap();
    assert!(!second.claim_serving().unwrap(), "one of them runs its jobs");
    assert_eq!((queued(&second).await, second.lost_its_log()), (50, false));
    let copy = other.path().join("backup.db");
    Store::back_up(&link, &copy).unwrap();
    let refused = Store::restore(&link, &copy).unwrap_err();
    assert!(refused.to_string().contains("another process"), "{refused}");
}

#[tokio::test]
async fn only_its_owner_may_read_a_database_and_its_copies() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (database, _store, _) = filled(folder.path()).await;
    let copy = folder.path().join("backup.db");
    Store::back_up(&database, &copy).unwrap();
    for file in [database.clone(), beside(&database, "-wal"), copy] {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn a_backup_under_load_holds_what_was_acknowledged_and_can_be_restored() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (database, store, stage) = filled(folder.path()).await;
    let copy = other.path().join("backup.db");
    let (busy, more) = (store.clone(), stage);
    let load = tokio::spawn(async move {
        for _ in 0..50 {
            busy.enqueue(vec![more.job("u")], NOON).await.unwrap();
        }
    });
    let written = copy.clone();
    tokio::task::spawn_blocking(move || Store::back_up(&database, &written)).await.unwrap().unwrap();
    load.await.unwrap();
    assert!(Store::back_up(&folder.path().join("seawall.db"), &copy).is_err(), "nothing is written over");
    Store::check(&copy).unwrap();
    let database = folder.path().join("seawall.db");
    let refused = Store::restore(&database, &copy).unwrap_err();
    assert!(refused.to_string().contains("another process"), "{refused}");
    let fresh = tempfile::tempdir().unwrap();
    let target = fresh.path().join("seawall.db");
    std::fs::write(&target, b"").unwrap();
    let aside = Store::restore(&target, &copy).unwrap();
    assert_eq!(aside, Some(beside(&target, ".before-1")));
    let restored = open(&target).await.unwrap();
    assert!(queued(&restored).await >= 50 && !restored.lost_its_log());
}

#[tokio::test]
async fn a_database_with_two_names_is_refused_under_either() {
    let folder = tempfile::tempdir().unwrap();
    let (database, store, stage) = filled(folder.path()).await;
    let link = folder.path().join("link.db");
    std::fs::hard_link(&database, &link).unwrap();
    for name in [&link, &database] {
        let refused = open(name).await.unwrap_err();
        assert!(refused.to_string().contains("hard links"), "{refused}");
    }
    assert!(Store::back_up(&link, &folder.path().join("backup.db")).is_err(), "its log is beside the other name");
    std::fs::remove_file(&link).unwrap();
    store.enqueue(vec![stage.job("u")], NOON).await.unwrap();
    assert_eq!(queued(&open(&database).await.unwrap()).await, 51);
}

#[tokio::test]
async fn a_folder_is_refused_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let refused = open(folder.path()).await.unwrap_err();
    assert!(refused.to_string().contains("folder") && !refused.to_string().contains("names"), "{refused}");
}

#[tokio::test]
async fn a_database_in_use_under_another_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (database, _store, _) = filled(folder.path()).await;
    let renamed = folder.path().join("renamed.db");
    std::fs::rename(&database, &renamed).unwrap();
    let refused = open(&renamed).await.unwrap_err();
    assert!(refused.to_string().contains("under another name"), "{refused}");
    assert!(!beside(&renamed, "-wal").exists(), "SQLite was not asked");
}

#[tokio::test]
async fn another_process_that_has_the_file_under_another_name_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("seawall.db");
    let other = std::fs::File::create(&database).unwrap();
    other.lock_shared().unwrap();
    let refused = open(&database).await.unwrap_err();
    assert!(refused.to_string().contains("under another name"), "{refused}");
    drop(other);
    open(&database).await.unwrap();
}

#[tokio::test]
async fn a_database_holds_a_lock_on_its_own_file_for_as_long_as_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let (database, store, _) = filled(folder.path()).await;
    // In a separate process: closing a descriptor of the file here would drop SQLite's locks.
    let is_free = || std::process::Command::new("flock").args(["-n", "-x"]).arg(&database).arg("true").status().unwrap().success();
    assert!(!is_free());
    drop(store);
    let mut tries = 0;
    while !is_free() {
        tries += 1;
        assert!(tries < 500, "the threads of the store end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
