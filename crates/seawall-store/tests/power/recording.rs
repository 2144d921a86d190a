//! A recording of a process's operations on the files of a folder, made by `recorder.c`, with the notes of the process. It wrote them into
//! a file of that folder, so that they are in order with the other operations.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file for the notes of a recorded process.
pub(crate) const NOTES: &str = "notes";
/// Environment variables of the recorded process: the folder, and the part to run.
pub(crate) const FOLDER: &str = "SEAWALL_RECORDED_FOLDER";
pub(crate) const PART: &str = "SEAWALL_RECORDED_PART";

#[derive(Clone)]
pub(crate) enum Op<'a> {
    Write { at: u64, data: &'a [u8] },
    Zeros { at: u64, length: u64 },
    Truncate(u64),
}

pub(crate) enum Event<'a> {
    Create {
        name: &'a str,
        file: u64,
    },
    Unlink(&'a str),
    Rename(&'a str, &'a str),
    Change {
        file: u64,
        op: Op<'a>,
    },
    /// Of a file, or of the folder if there is none.
    SyncBegins {
        thread: u32,
        file: Option<u64>,
    },
    SyncEnds {
        thread: u32,
        file: Option<u64>,
    },
}

/// The next entry of a recording.
pub(crate) enum Step<'a> {
    Disk(Event<'a>),
    Note(&'a str),
}

/// Runs this test program again as the recorded process, for each part.
pub(crate) fn record(folder: &Path, parts: std::ops::Range<usize>) -> Vec<u8> {
    let (library, recording, recorded) = (folder.join("recorder.so"), folder.join("recording"), folder.join("recorded"));
    compile(&library);
    std::fs::create_dir(&recorded).unwrap();
    for part in parts {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "workload::the_recorded_process", "--nocapture", "--test-threads=1"]);
        program.env("LD_PRELOAD", &library).env("SEAWALL_RECORDING", &recording).env(FOLDER, &recorded).env(PART, part.to_string());
        let ended = program.output().unwrap();
        // A part may end by killing itself, and prints that before.
        let told = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        assert!(told.contains("this part is over"), "part {part}: {told}");
    }
    std::fs::read(recording).unwrap()
}

fn compile(library: &Path) {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/power/recorder.c");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    let compiled = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(library).arg(source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Parses a recording, in chronological order.
pub(crate) fn read(mut bytes: &[u8]) -> Vec<Step<'_>> {
    const HEAD: usize = 32;
    let (mut steps, mut notes) = (Vec::new(), HashSet::new());
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at(HEAD);
        let short = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap());
        let (kind, thread, file, at, length) = (short(0), short(4), long(8), long(16), long(24));
        let has_data = matches!(kind, 1 | 2 | 7 | 8);
        let (data, rest) = rest.split_at(if has_data { usize::try_from(length).unwrap() } else { 0 });
        bytes = rest;
        let text = || std::str::from_utf8(data).unwrap();
        let event = match kind {
            1 if text() == NOTES => {
                notes.insert(file);
                continue;
            }
            2 if notes.contains(&file) => {
                steps.extend(text().lines().map(Step::Note));
                continue;
            }
            1 => Event::Create { name: text(), file },
            2 => Event::Change { file, op: Op::Write { at, data } },
            3 => Event::Change { file, op: Op::Zeros { at, length } },
            4 => Event::Change { file, op: Op::Truncate(length) },
            5 => Event::SyncBegins { thread, file: Some(file) },
            6 => Event::SyncEnds { thread, file: Some(file) },
            7 => Event::Unlink(text()),
            8 => text().split_once('\n').map(|(from, to)| Event::Rename(from, to)).unwrap(),
            9 => Event::SyncBegins { thread, file: None },
            10 => Event::SyncEnds { thread, file: None },
            other => panic!("the recorder does not know what was done ({other}): teach it"),
        };
        steps.push(Step::Disk(event));
    }
    steps
}
