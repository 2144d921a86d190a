//! An error type without a classification.

use seawall_engine::Policy;

struct Mine;

fn main() {
    let _ = Policy::default().call(|_| async { Err::<(), _>(Mine) });
}
