//! Targets that somebody handed in as a whole URL: callbacks, notifications, jobs without an upstream. Each origin gets a
//! breaker, a budget and connections of its own, and none may lead into our own network unless the operator allows it.

use seawall_core::config::{self, url::Base};
use seawall_core::time::Now;
use seawall_engine::live::{Around, Live, LiveUpstream};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Origins that are remembered; the ones that were used longest ago are forgotten.
const MOST: usize = 1024;

/// What such targets are called in logs and metrics: their hosts are other people's choice, so they are no label.
pub(super) const NAME: &str = "ad-hoc";

#[derive(Debug, Default)]
pub(super) struct AdHoc {
    by_origin: RefCell<BTreeMap<String, (u64, Arc<LiveUpstream>)>>,
    uses: std::cell::Cell<u64>,
}

/// Where a whole URL leads: its origin, and what is asked for there.
pub(super) fn split(url: &str) -> Result<(String, String), String> {
    let base = Base::parse_callback(url)?;
    let scheme = if base.tls { "https" } else { "http" };
    let origin = format!("{scheme}://{}", base.authority());
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find(['/', '?']).map_or("/", |at| &rest[at..]);
    let path = path.split('#').next().unwrap_or(path);
    Ok((origin, if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }))
}

impl AdHoc {
    /// The upstream that stands for an origin.
    pub(super) fn upstream(&self, origin: &str) -> Result<Arc<LiveUpstream>, String> {
        let mut known = self.by_origin.borrow_mut();
        let used = self.uses.get() + 1;
        self.uses.set(used);
        if let Some((last, upstream)) = known.get_mut(origin) {
            *last = used;
            return Ok(Arc::clone(upstream));
        }
        let text = format!("[upstreams.{NAME}]\nurl = {origin:?}\n{POLICY}");
        let config = config::load("ad hoc", text.as_bytes()).map_err(|problems| problems.to_string())?;
        let around = Around { vault: &|_| Err("there are no secrets here".to_owned()), files: &|_| Err("no files".to_owned()) };
        let none: Option<(&Live, Now)> = None;
        let live = Live::new(config, around, none).map_err(|unusable| unusable.to_string())?;
        let upstream = Arc::clone(live.named(NAME).ok_or("the origin makes no upstream")?);
        if known.len() >= MOST
            && let Some(oldest) = known.iter().min_by_key(|(_, (last, _))| *last).map(|(origin, _)| origin.clone())
        {
            known.remove(&oldest);
        }
        known.insert(origin.to_owned(), (used, Arc::clone(&upstream)));
        Ok(upstream)
    }
}

/// Receivers are told apart by `webhook-id`, so a POST may go again; they may be down for hours, so it does so slowly.
const POLICY: &str = r#"timeout = { connect = "5s", attempt = "15s", total = "1m" }
retry = { attempts = 10, backoff = "full-jitter", base = "2s", cap = "1h", ambiguous = 8, retry_after_cap = "1d", unsafe = "always" }
breaker = { per = "upstream", consecutive = 5, open = "10s", open_max = "5m" }
dead_letter = { ttl = "14d" }
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_origin_and_what_is_asked_for_there() {
        let at = |url| split(url).map(|(origin, path)| format!("{origin} {path}"));
        assert_eq!(at("https://example.org/a?b=c#d").unwrap(), "https://example.org /a?b=c");
        assert_eq!(at("http://example.org:8080").unwrap(), "http://example.org:8080 /");
        assert_eq!(at("http://example.org?x").unwrap(), "http://example.org /?x");
        for bad in ["ftp://example.org/", "/only/a/path", "http://user:pass@example.org/", ""] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_keep_their_state_and_are_bounded() {
        let adhoc = AdHoc::default();
        let first = adhoc.upstream("http://example.org").unwrap();
        assert!(Arc::ptr_eq(&first, &adhoc.upstream("http://example.org").unwrap()));
        for n in 0..MOST {
            adhoc.upstream(&format!("http://h{n}.example.org")).unwrap();
        }
        assert_eq!(adhoc.by_origin.borrow().len(), MOST);
    }
}
