//! A classifier that returns a value which is no meaning.

use seawall_engine::Policy;

struct Mine;

fn main() {
    let _ = Policy::default().classify(|_: &Mine| true).call(|_| async { Err::<(), _>(Mine) });
}
