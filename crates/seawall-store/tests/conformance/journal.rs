//! Journals of batch runs: complete pieces in order, with their letters, by one writer at a time.

use crate::dead::letter;
use crate::stage::{NOON, Stage, after, on_each_backend};
use seawall_store::Store;
use seawall_store::journal::{Durability, JournalPiece, RunId};

on_each_backend!(
    pieces_come_back_in_order,
    a_piece_and_its_letters_are_kept_together,
    a_journal_is_cut_from_its_end,
    old_journals_are_forgotten,
    one_process_at_a_time_is_at_a_run,
);

const RUN: RunId = [1; 32];
const OTHER: RunId = [2; 32];

fn piece(number: u64, content: &'static str) -> JournalPiece {
    JournalPiece { number, content: content.into(), ..JournalPiece::default() }
}

async fn append(store: &Store, run: RunId, piece: JournalPiece) {
    store.journal_append(run, piece, Durability::FromUs, NOON).await.unwrap();
}

/// Returns the numbers and contents of a run's pieces.
async fn pieces(store: &Store, run: RunId) -> Vec<(u64, String)> {
    let found = store.journal(run, 0, 100).await.unwrap();
    found.into_iter().map(|(number, content)| (number, String::from_utf8(content.to_vec()).unwrap())).collect()
}

fn expected(pieces: &[(u64, &str)]) -> Vec<(u64, String)> {
    pieces.iter().map(|(number, content)| (*number, (*content).to_owned())).collect()
}

async fn pieces_come_back_in_order(stage: Stage) {
    append(&stage.store, RUN, piece(1, "b")).await;
    append(&stage.store, RUN, piece(0, "a")).await;
    append(&stage.store, OTHER, piece(0, "x")).await;
    stage.store.journal_append(RUN, piece(2, "c"), Durability::FromPowerCuts, NOON).await.unwrap();
    append(&stage.store, RUN, piece(2, "again")).await;
    let other = stage.open_again().await;
    assert_eq!(pieces(&other, RUN).await, expected(&[(0, "a"), (1, "b"), (2, "c")]));
    let some = other.journal(RUN, 1, 1).await.unwrap();
    assert_eq!(some.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1]);
    assert_eq!(pieces(&other, OTHER).await, expected(&[(0, "x")]), "runs do not know of each other");
}

async fn a_piece_and_its_letters_are_kept_together(stage: Stage) {
    let (old, new) = (letter(&stage, NOON), letter(&stage, after(1)));
    let (old_id, new_id) = (old.id, new.id);
    append(&stage.store, RUN, JournalPiece { letters: vec![old], ..piece(0, "a") }).await;
    assert!(stage.store.letter(old_id).await.unwrap().is_some());
    let next = JournalPiece { letters: vec![new], outdated: vec![old_id], ..piece(1, "b") };
    for _ in 0..2 {
        append(&stage.store, RUN, next.clone()).await;
        let kept = (stage.store.letter(old_id).await.unwrap(), stage.store.letter(new_id).await.unwrap());
        assert!(kept.0.is_none() && kept.1.is_some(), "{kept:?}");
    }
    assert_eq!(stage.store.issues().await.unwrap().iter().map(|issue| issue.open).sum::<u64>(), 1);
}

async fn a_journal_is_cut_from_its_end(stage: Stage) {
    for number in 0..5 {
        append(&stage.store, RUN, piece(number, "a")).await;
    }
    append(&stage.store, OTHER, piece(4, "x")).await;
    assert_eq!(stage.store.journal_cut(RUN, 1, 2).await.unwrap(), 2);
    assert_eq!(pieces(&stage.store, RUN).await, expected(&[(0, "a"), (1, "a"), (2, "a")]), "the beginning stays whole");
    assert_eq!(stage.store.journal_cut(RUN, 1, 100).await.unwrap(), 2);
    assert_eq!(stage.store.journal_cut(RUN, 1, 100).await.unwrap(), 0);
    assert_eq!(pieces(&stage.store, RUN).await, expected(&[(0, "a")]));
    assert_eq!(pieces(&stage.store, OTHER).await, expected(&[(4, "x")]));
}

async fn old_journals_are_forgotten(stage: Stage) {
    for number in 0..5 {
        append(&stage.store, RUN, piece(number, "a")).await;
    }
    stage.store.journal_append(OTHER, piece(0, "x"), Durability::FromUs, after(9)).await.unwrap();
    assert_eq!(stage.store.sweep_runs(NOON, 100).await.unwrap(), 0);
    while stage.store.sweep_runs(after(1), 2).await.unwrap() > 0 {}
    assert_eq!(pieces(&stage.store, RUN).await, []);
    assert_eq!(pieces(&stage.store, OTHER).await, expected(&[(0, "x")]));
}

async fn one_process_at_a_time_is_at_a_run(stage: Stage) {
    let other = stage.open_again().await;
    let held = stage.store.hold_run(RUN).await.unwrap();
    assert!(held.is_some() && other.hold_run(RUN).await.unwrap().is_none());
    assert!(other.hold_run(OTHER).await.unwrap().is_some());
    drop(held);
    // A server detects the end of a connection a little later.
    for _ in 0..200 {
        if other.hold_run(RUN).await.unwrap().is_some() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("nobody holds it, and nobody may");
}
