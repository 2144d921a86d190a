//! A closure whose future has no error to judge.

use seawall_engine::Policy;

fn main() {
    let _ = Policy::default().call(|_| async { 42 });
}
