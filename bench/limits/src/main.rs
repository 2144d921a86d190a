//! `bench-limits <operation> <times>` runs one operation so often, for callgrind; `bench-limits times` prints nanoseconds of
//! each, taken in turn; `bench-limits redis <url>` compares checks in Redis with the bare script. `run` does all of it.

mod local;
mod shared;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (name, argument) = (arguments.next().unwrap_or_default(), arguments.next());
    match (name.as_str(), argument) {
        ("times", None) => local::times(),
        ("redis", Some(url)) => shared::compare(&url),
        (name, Some(times)) => {
            let found = local::OPERATIONS.iter().find(|(known, _)| *known == name);
            let (_, run) = found.expect("an operation of src/local.rs");
            run(times.parse().expect("how often, as a number"));
        }
        _ => panic!("usage: bench-limits <operation> <times> | times | redis <url>"),
    }
}
