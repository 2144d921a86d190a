//! Journals on a real store: which pieces count, which rows are repeated, and the cost of a changed list.

use super::super::input::{EarlierRow, Read};
use super::super::row::BadRow;
use super::*;
use seawall_store::location::Location;

const RUN: RunId = [3; 32];

/// A store of its own, and the folder that must outlive it.
async fn store() -> (Store, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Store::open(&Location::Sqlite(folder.path().join("seawall.db"))).await.unwrap(), folder)
}

async fn open(store: &Store, again: Again, length: Option<u64>) -> (Journal, Earlier, Option<u64>) {
    Journal::open(store.clone(), RUN, again, length, Wall(0)).await.unwrap().unwrap()
}

async fn append(journal: &mut Journal, entry: JournalEntry) {
    journal.append(&entry, Vec::new(), Vec::new(), Durability::FromUs, Wall(0)).await.unwrap();
}

/// Finished rows on these lines; each key is its line times a hundred.
fn done(output: u64, lines: impl IntoIterator<Item = u64>) -> JournalEntry {
    JournalEntry { output: Some(output), done: lines.into_iter().map(|line| (line, line * 100)).collect(), ..JournalEntry::default() }
}

/// The keys among those on the lines from 1 on that a run would fetch.
async fn todo(earlier: &mut Earlier, keys: &[u64]) -> Vec<u64> {
    let mut left = Vec::new();
    let row = |(line, key): (u64, &u64)| BadRow { line, ordinal: 0, key: *key, text: String::new(), why: String::new() };
    let rows: Vec<BadRow> = (1..).zip(keys).map(row).collect();
    for rows in rows.chunk_by(|a, b| super::super::earlier_runs::block(a.line) == super::super::earlier_runs::block(b.line)) {
        let block = super::super::earlier_runs::block(rows[0].line);
        let mut rows: Vec<Read> = rows.iter().map(|row| Read::Bad(row.clone(), EarlierRow::default())).collect();
        earlier.filter_block(block, &mut rows, true).await.unwrap();
        left.extend(rows.iter().map(|row| row.place().1));
    }
    left
}

fn hundreds(lines: impl IntoIterator<Item = u64>) -> Vec<u64> {
    lines.into_iter().map(|line| line * 100).collect()
}

#[test]
fn what_is_written_reads_back() {
    let entry = JournalEntry {
        output: Some(9),
        replaces: Some(12),
        changed: true,
        done: vec![(5, u64::MAX), (3, 0), (u64::MAX, 7), (1, 1 << 60)],
        dead: vec![(u64::MAX, "a".to_owned(), String::new())],
        pages: vec![(1, 2, "/\nü".to_owned())],
        relined: true,
        loose: true,
        page_lines: vec![4],
        dead_lines: vec![6],
        moved: vec![(7, 2, 5)],
    };
    for entry in [entry, JournalEntry::default()] {
        let bytes = entry.write().unwrap();
        assert_eq!(JournalEntry::read(&bytes), Some(entry.clone()));
        assert!(JournalEntry::read(&bytes[..bytes.len() - 1]) != Some(entry), "a piece that was cut is noticed");
    }
}

#[tokio::test]
async fn rows_that_are_done_are_not_done_again() {
    let (store, _folder) = store().await;
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    append(&mut journal, done(10, (1..=300).filter(|line| line % 7 != 0))).await;
    append(&mut journal, done(20, [7, 14])).await;
    assert!(Journal::open(store.clone(), RUN, Again::Unfinished, None, Wall(0)).await.unwrap().is_err(), "one at a time");
    drop(journal);
    let (_journal, mut earlier, output) = open(&store, Again::Unfinished, Some(20)).await;
    assert_eq!(output, Some(20));
    let found = todo(&mut earlier, &hundreds(1..=302)).await;
    assert_eq!(found, hundreds((21..=300).filter(|line| line % 7 == 0).chain([301, 302])), "also where the list has grown");
    assert!(!earlier.is_changed());
}

#[tokio::test]
async fn rows_of_a_changed_list_are_known_by_what_they_ask_for() {
    let (store, _folder) = store().await;
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    append(&mut journal, done(10, 1..=400)).await;
    drop(journal);
    // One row is removed, two swap places, one is new and one occurs twice.
    let mut list: Vec<u64> = hundreds((1..=400).filter(|line| *line != 150));
    list.swap(200, 380);
    list.insert(290, 7);
    list.insert(295, 100);
    let (mut journal, mut earlier, _) = open(&store, Again::Unfinished, Some(10)).await;
    assert_eq!(todo(&mut earlier, &list).await, [7, 100]);
    assert!(earlier.is_changed());
    // From now on lines do not count, whatever the list becomes.
    append(&mut journal, JournalEntry { changed: true, done: vec![(291, 7)], ..done(11, []) }).await;
    drop(journal);
    let (_journal, mut earlier, _) = open(&store, Again::Unfinished, Some(11)).await;
    assert_eq!(todo(&mut earlier, &list).await, [100]);
}

#[tokio::test]
async fn a_row_that_was_not_done_may_be_mended_in_its_place() {
    let (store, _folder) = store().await;
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    append(&mut journal, done(10, (1..=200).filter(|line| *line != 9))).await;
    drop(journal);
    let mut list = hundreds(1..=200);
    list[8] = 5;
    let (_journal, mut earlier, _) = open(&store, Again::Unfinished, Some(10)).await;
    assert_eq!(todo(&mut earlier, &list).await, [5]);
    assert!(!earlier.is_changed(), "which is no change of what is done");
}

#[tokio::test]
async fn what_the_output_has_lost_is_done_again() {
    let (store, _folder) = store().await;
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    for (output, line) in [(10, 1), (20, 2), (30, 3)] {
        append(&mut journal, done(output, [line])).await;
    }
    drop(journal);
    let (journal, mut earlier, output) = open(&store, Again::Unfinished, Some(25)).await;
    assert_eq!((output, todo(&mut earlier, &hundreds(1..=3)).await), (Some(20), hundreds([3])));
    drop(journal);
    let (_journal, mut earlier, output) = open(&store, Again::Unfinished, Some(0)).await;
    assert_eq!((output, todo(&mut earlier, &hundreds(1..=3)).await), (None, hundreds(1..=3)), "all of it, if all of it is gone");
}

#[tokio::test]
async fn an_output_is_cut_by_what_it_is_and_not_by_what_it_was_to_become() {
    let (store, _folder) = store().await;
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    append(&mut journal, done(30, [1])).await;
    append(&mut journal, JournalEntry { replaces: Some(30), ..done(20, []) }).await;
    drop(journal);
    let (journal, _, output) = open(&store, Again::Unfinished, Some(20)).await;
    assert_eq!(output, Some(20), "it was replaced");
    drop(journal);
    let (_journal, _, output) = open(&store, Again::Unfinished, Some(30)).await;
    assert_eq!(output, Some(30), "it was not");
}

#[tokio::test]
async fn the_dead_are_met_again_with_their_letters_until_they_are_done() {
    let (store, _folder) = store().await;
    let letter = CallId::from_bytes([7; 16]);
    let (mut journal, ..) = open(&store, Again::Everything, None).await;
    let dead = vec![(500, letter.to_string(), String::new())];
    append(&mut journal, JournalEntry { dead, pages: vec![(600, 3, "/n".to_owned())], ..done(0, [1]) }).await;
    drop(journal);
    let rows = |keys: &[u64]| -> Vec<Read> {
        let bad = |key: &u64| BadRow { line: key / 100, ordinal: 0, key: *key, text: String::new(), why: String::new() };
        keys.iter().map(|key| Read::Bad(bad(key), EarlierRow::default())).collect()
    };
    let (mut journal, mut earlier, _) = open(&store, Again::Dead, None).await;
    let mut met = rows(&[100, 200, 500]);
    earlier.filter_block(0, &mut met, true).await.unwrap();
    assert_eq!((met.len(), met[0].place(), met[0].before().letter), (1, (5, 500), Some(letter)));
    append(&mut journal, done(0, [5])).await;
    drop(journal);
    let (_journal, mut earlier, _) = open(&store, Again::Unfinished, None).await;
    assert!(!earlier.has_dead());
    let mut met = rows(&[100, 500, 600]);
    earlier.filter_block(0, &mut met, true).await.unwrap();
    assert_eq!((met.len(), met[0].before().page.clone()), (1, Some((3, "/n".to_owned()))));
}
