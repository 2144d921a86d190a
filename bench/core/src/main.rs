//! Runs one operation N times, so that the difference between two counts of instructions is the operation and nothing
//! else. `bench-core list` names the operations; `bench-core memory` measures bytes per key; `run` prints the table.

mod memory;
mod ours;
mod peers;

/// An operation by name: runs itself so many times.
type Operation = (&'static str, fn(u64));

/// The loop with nothing in it, which every other figure has to be reduced by.
fn empty(times: u64) {
    for at in 0..times {
        std::hint::black_box(at);
    }
}

fn operations() -> Vec<Operation> {
    let mut all: Vec<Operation> = vec![("empty", empty)];
    all.extend(ours::OPERATIONS);
    all.extend(peers::OPERATIONS);
    all
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    match name.as_str() {
        "list" => operations().iter().for_each(|(name, _)| println!("{name}")),
        "memory" => memory::report(),
        _ => {
            let times = arguments.next().and_then(|text| text.parse().ok()).expect("usage: bench-core <operation> <times>");
            let (_, run) = operations().into_iter().find(|(known, _)| *known == name).expect("an operation from `bench-core list`");
            run(times);
        }
    }
}
