//! The start-up text of `serve`: addresses and warnings.

use crate::RunningServer;

use crate::notify;

use crate::shown;

pub(crate) fn text(running: &RunningServer) -> String {
    let live = running.shared.live.load();
    let names: Vec<&str> = live.config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    let mut text = format!(
        "seawall {}\n  policy    {}\n  gateway   {}/{{{}}}\n  admin     {}  (dashboard, /v1, /metrics)",
        running.shared.version,
        running.shared.file.display(),
        shown(running.gateway, live.front.is_some()),
        names.join(","),
        shown(running.admin, false),
    );
    for upstream in &live.config.upstreams {
        if let Some(at) = upstream.listen.as_ref().and_then(|address| running.shared.ports.at(address)) {
            text.push_str(&format!("\n  port      {}  ({})", shown(at, live.front.is_some()), upstream.name));
        }
    }
    text.push_str(&format!("\n  store     {}", crate::configuration::shown_store(&live.config.server.store)));
    if live.shared.is_some() {
        // The URL may hold a password.
        text.push_str("\n  shared    Redis");
    }
    for spec in &live.config.notify {
        text.push_str(&format!("\n  notify    {} as {}", spec.events.join(", "), spec.format.as_str()));
    }
    for problem in notify::out_of_reach(&running.shared) {
        text.push_str(&format!("\n  warning   {problem}"));
    }
    text
}
