//! A closure whose future does not return a `Result`.

use seawall_engine::Policy;

fn main() {
    let _ = Policy::default().call(|_| async { 42 });
}
