//! Fairness, pauses and bounds of lanes.

use super::*;
use bytes::Bytes;

fn row(lane: &str, ordinal: u64) -> InputRow {
    InputRow {
        file: String::new(),
        line: ordinal + 1,
        ordinal,
        key: ordinal,
        id: String::new(),
        lane: Arc::from(lane),
        method: "GET".to_owned(),
        below: "/".to_owned(),
        headers: Vec::new(),
        body: Bytes::new(),
    }
}

fn lanes(most: usize) -> Lanes {
    Lanes::new(most, None, false, Nanos::from_secs(900))
}

fn run(lane: usize, row: InputRow) -> Box<StartedRow> {
    let started = Now { mono: Mono(0), wall: Wall(0) };
    let (progress, history) = (CallProgress::default(), Vec::new());
    Box::new(StartedRow {
        id: CallId::from_bytes([0; 16]),
        row,
        before: EarlierRow::default(),
        progress,
        history,
        spent: Nanos::ZERO,
        started,
        page: 1,
        landmark: Landmark::default(),
        resends: 0,
        lane,
    })
}

/// The lanes of rows that are started, in order, until nothing can be.
fn started(lanes: &mut Lanes, now: Mono) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        match lanes.take(now).unwrap() {
            NextWork::Fresh(_, fresh) => names.push(fresh.0.lane.to_string()),
            NextWork::Go(run) => names.push(format!("{}+", run.row.lane)),
            NextWork::Nothing | NextWork::Over => return names,
        }
    }
}

#[test]
fn lanes_take_turns_and_leave_room_for_each_other() {
    let mut lanes = lanes(4);
    for ordinal in 0..6 {
        lanes.push(row("a", ordinal), EarlierRow::default()).unwrap();
    }
    for ordinal in 6..8 {
        lanes.push(row("b", ordinal), EarlierRow::default()).unwrap();
    }
    assert_eq!(started(&mut lanes, Mono(0))[..4], ["a", "b", "a", "b"]);
}

#[test]
fn a_lane_that_pauses_blocks_nobody_and_goes_on_where_it_was() {
    let mut lanes = lanes(2);
    lanes.push(row("a", 0), EarlierRow::default()).unwrap();
    lanes.push(row("a", 1), EarlierRow::default()).unwrap();
    let NextWork::Fresh(at, first) = lanes.take(Mono(0)).unwrap() else { panic!("a row") };
    lanes.pause(run(at, first.0), Mono(100), Some(Code::CircuitOpen), Mono(0));
    lanes.leave(at);
    lanes.push(row("b", 2), EarlierRow::default()).unwrap();
    assert_eq!(started(&mut lanes, Mono(50)), ["b"]);
    assert!(lanes.is_hungry() && lanes.next_wake() == Some(Mono(100)));
    lanes.wake(Mono(100));
    assert_eq!(started(&mut lanes, Mono(100))[0], "a+");
}

#[test]
fn a_success_ends_a_pause_early() {
    let mut lanes = lanes(2);
    lanes.push(row("a", 0), EarlierRow::default()).unwrap();
    let NextWork::Fresh(at, first) = lanes.take(Mono(0)).unwrap() else { panic!("a row") };
    lanes.pause(run(at, first.0), Mono(100), Some(Code::CircuitOpen), Mono(0));
    lanes.went_well(at);
    assert_eq!(started(&mut lanes, Mono(1)), ["a+"]);
}

#[test]
fn a_host_that_stays_away_is_given_up() {
    let mut lanes = lanes(1);
    lanes.push(row("a", 0), EarlierRow::default()).unwrap();
    let NextWork::Fresh(at, first) = lanes.take(Mono(0)).unwrap() else { panic!("a row") };
    let late = Mono(Nanos::from_secs(901).0);
    lanes.pause(run(at, first.0), Mono(1), Some(Code::CircuitOpen), Mono(0));
    assert_eq!(lanes.given_up(at), None);
    let again = lanes.lanes[at].ready.pop_front().unwrap();
    lanes.ready -= 1;
    lanes.pause(again, late, Some(Code::CircuitOpen), Mono(5));
    assert_eq!(lanes.given_up(at), Some(Code::CircuitOpen));
}

#[test]
fn a_long_lane_waits_on_disk_and_memory_stays_bounded() {
    let mut lanes = lanes(1);
    let mut pushed = 0;
    while lanes.is_hungry() || pushed < 200_000 {
        lanes.push(row("a", pushed), EarlierRow::default()).unwrap();
        pushed += 1;
    }
    assert!(lanes.memory <= MEMORY + 1024 && lanes.spills == 1, "{} {}", lanes.memory, lanes.spills);
    lanes.input_over = true;
    for expected in 0..pushed {
        let NextWork::Fresh(at, fresh) = lanes.take(Mono(0)).unwrap() else { panic!("row {expected}") };
        assert_eq!(fresh.0.ordinal, expected);
        lanes.leave(at);
    }
    assert!(matches!(lanes.take(Mono(0)).unwrap(), NextWork::Over));
}

#[test]
fn an_ordered_output_bounds_how_far_rows_run_ahead() {
    let mut lanes = Lanes::new(100_000, None, true, Nanos::from_secs(900));
    for ordinal in 0..WINDOW * 2 {
        lanes.push(row("a", ordinal), EarlierRow::default()).unwrap();
    }
    assert_eq!(started(&mut lanes, Mono(0)).len() as u64, WINDOW);
    lanes.ordered = Some((10, 0));
    assert_eq!(started(&mut lanes, Mono(0)).len(), 10);
}
