//! What `serve` says when it starts: what listens where, and what it found.

use super::{Running, shown};
use seawall_core::config::Config;

pub(super) fn text(running: &Running) -> String {
    let live = running.shared.live.load();
    let names: Vec<&str> = live.config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let mut text = format!(
        "seawall {}\n  policy    {}\n  gateway   {}/{{{}}}\n  admin     {}  (dashboard, /v1, /metrics)",
        env!("SEAWALL_VERSION"),
        running.shared.file.display(),
        shown(running.gateway),
        names.join(","),
        shown(running.admin),
    );
    text.push_str(&format!("\n  store     {}", crate::setup::shown_store(&live.config.server.store)));
    if live.shared.is_some() {
        // The URL may hold a password.
        text.push_str("\n  shared    Redis");
    }
    for missing in not_yet(&live.config) {
        text.push_str(&format!("\n  warning   {missing}"));
    }
    text
}

/// What the file asks for and this version does not do. Saying so beats pretending.
fn not_yet(config: &Config) -> Vec<String> {
    let mut missing = Vec::new();
    let mut say = |asked: bool, what: &str| {
        if asked {
            missing.push(format!("{what} in this version of `serve`"));
        }
    };
    say(!config.notify.is_empty(), "notifications are not sent");
    missing
}
