//! Ad-hoc targets, given by callers as whole URLs: callbacks, notifications, jobs without an upstream, rows of a batch. Each origin has a
//! breaker, a budget and connections of its own, under a policy that the front end chooses.

use crate::runtime::{Around, Live, LiveUpstream};
use seawall_core::config::{self, url::Base};
use seawall_core::time::Now;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum origins that are kept; the least recently used one is dropped first.
const MAX_ORIGINS: usize = 1024;

/// The name of ad-hoc targets in logs and metrics. Hosts are chosen by callers, so they must not become labels.
pub const NAME: &str = "ad-hoc";

#[derive(Debug)]
pub struct AdHoc {
    /// Configuration of the upstream that represents an origin.
    policy: &'static str,
    known: Mutex<KnownOrigins>,
}

#[derive(Debug, Default)]
struct KnownOrigins {
    by_origin: BTreeMap<String, (u64, Arc<LiveUpstream>)>,
    uses: u64,
}

/// Splits a whole URL into its origin, and path with query.
pub fn split(url: &str) -> Result<(String, String), String> {
    let base = Base::parse_callback(url)?;
    let scheme = if base.tls { "https" } else { "http" };
    let origin = format!("{scheme}://{}", base.authority());
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find(['/', '?']).map_or("/", |at| &rest[at..]);
    let path = path.split('#').next().unwrap_or(path);
    Ok((origin, if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }))
}

impl AdHoc {
    pub fn new(policy: &'static str) -> Self {
        Self { policy, known: Mutex::default() }
    }

    /// Returns the upstream that represents an origin.
    pub fn upstream(&self, origin: &str) -> Result<Arc<LiveUpstream>, String> {
        if let Some(known) = self.known().used(origin) {
            return Ok(known);
        }
        // Built without the lock. If another thread was faster, its upstream is used.
        let made = self.make(origin)?;
        let mut known = self.known();
        Ok(known.used(origin).unwrap_or_else(|| known.keep(origin, made)))
    }

    fn known(&self) -> MutexGuard<'_, KnownOrigins> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, origin: &str) -> Result<Arc<LiveUpstream>, String> {
        let text = format!("[upstreams.{NAME}]\nurl = {origin:?}\n{}", self.policy);
        let config = config::load("ad hoc", text.as_bytes()).map_err(|problems| problems.to_string())?;
        let around = Around { vault: &|_| Err("there are no secrets here".to_owned()), files: &|_| Err("no files".to_owned()) };
        let none: Option<(&Live, Now)> = None;
        let live = Live::new(config, around, none).map_err(|unusable| unusable.to_string())?;
        live.named(NAME).map(Arc::clone).ok_or_else(|| "the origin makes no upstream".to_owned())
    }
}

impl KnownOrigins {
    fn used(&mut self, origin: &str) -> Option<Arc<LiveUpstream>> {
        let (last, upstream) = self.by_origin.get_mut(origin)?;
        self.uses += 1;
        *last = self.uses;
        Some(Arc::clone(upstream))
    }

    fn keep(&mut self, origin: &str, made: Arc<LiveUpstream>) -> Arc<LiveUpstream> {
        if self.by_origin.len() >= MAX_ORIGINS
            && let Some(oldest) = self.by_origin.iter().min_by_key(|(_, (last, _))| *last).map(|(origin, _)| origin.clone())
        {
            self.by_origin.remove(&oldest);
        }
        self.uses += 1;
        self.by_origin.insert(origin.to_owned(), (self.uses, Arc::clone(&made)));
        made
    }
}

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
        let adhoc = AdHoc::new("");
        let first = adhoc.upstream("http://example.org").unwrap();
        assert!(Arc::ptr_eq(&first, &adhoc.upstream("http://example.org").unwrap()));
        for n in 0..MAX_ORIGINS {
            adhoc.upstream(&format!("http://h{n}.example.org")).unwrap();
        }
        assert_eq!(adhoc.known().by_origin.len(), MAX_ORIGINS);
    }
}
