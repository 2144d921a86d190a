//! The destination of a row: the upstream whose URL is a prefix of the row's, the upstream that was named, or the origin itself.

use super::template::encode;
use seawall_core::config::Config;
use seawall_core::config::url::Base;
use seawall_engine::ad_hoc;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Routes {
    upstreams: Vec<(Arc<str>, Base)>,
    /// The upstream for rows that are only a path.
    named: Option<Arc<str>>,
    /// The origin of the row before: most lists have few.
    last: Arc<str>,
}

impl Routes {
    /// # Errors
    /// When the named upstream is not configured.
    pub(super) fn new(config: Option<&Config>, named: Option<&str>) -> Result<Self, String> {
        let upstreams: Vec<(Arc<str>, Base)> = config
            .map(|config| config.upstreams.iter().map(|upstream| (Arc::from(upstream.name.as_str()), upstream.url.clone())).collect())
            .unwrap_or_default();
        let named = match named {
            None => None,
            Some(name) => {
                let found = upstreams.iter().find(|(other, _)| **other == *name).map(|(name, _)| Arc::clone(name));
                Some(found.ok_or_else(|| format!("no upstream named `{name}` is configured"))?)
            }
        };
        Ok(Self { upstreams, named, last: Arc::from("") })
    }

    /// The lane of a URL or path, and the request target there.
    ///
    /// # Errors
    /// When it is neither a URL nor a path of a named upstream.
    pub(super) fn route(&mut self, target: &str) -> Result<(Arc<str>, String), String> {
        let target = &sendable(target)?;
        if !target.contains("://") {
            let Some(named) = &self.named else { return Err("not a URL, and no `--upstream` says whose path it would be".to_owned()) };
            let below = if target.starts_with('/') { target.clone() } else { format!("/{target}") };
            return Ok((Arc::clone(named), below));
        }
        let (origin, path) = ad_hoc::split(target)?;
        if !self.upstreams.is_empty()
            && let Some((name, below)) = self.configured(&origin, &path)
        {
            return Ok((name, below));
        }
        if *self.last != *origin {
            self.last = Arc::from(origin);
        }
        Ok((Arc::clone(&self.last), path))
    }

    /// The upstream whose URL is the longest prefix of this one.
    fn configured(&self, origin: &str, path: &str) -> Option<(Arc<str>, String)> {
        let base = Base::parse(origin).ok()?;
        let fitting = self.upstreams.iter().filter(|(_, url)| url.same_origin(&base));
        let found = fitting.filter_map(|(name, url)| Some((name, url.path.len(), below(url, path)?)));
        found.max_by_key(|(_, length, _)| *length).map(|(name, _, rest)| (Arc::clone(name), rest.to_owned()))
    }
}

/// The part of a path below an upstream's base path; empty or a query if it is that path. `/v10` is not below `/v1`.
pub(super) fn below<'a>(base: &Base, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(&*base.path).filter(|rest| base.path.is_empty() || rest.is_empty() || rest.starts_with(['/', '?']))
}

/// A URL or path from a list or a link in a form that can be sent: spaces and letters outside ASCII are escaped, and a fragment is dropped.
///
/// # Errors
/// When it has control characters, which are a mistake.
pub(super) fn sendable(target: &str) -> Result<String, String> {
    if target.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("a URL has no control characters".to_owned());
    }
    let target = target.split('#').next().unwrap_or(target).trim();
    let mut encoded = String::with_capacity(target.len());
    encode(target, &mut encoded, |byte| byte.is_ascii_graphic() && !b"\"<>`{}|^\\".contains(&byte));
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(named: Option<&str>) -> Routes {
        let text = "[upstreams.a]\nurl = \"https://a.test/v1\"\n[upstreams.b]\nurl = \"https://a.test\"\n";
        Routes::new(Some(&seawall_core::config::load("t", text.as_bytes()).unwrap()), named).unwrap()
    }

    fn at(routes: &mut Routes, target: &str) -> String {
        routes.route(target).map_or_else(|why| format!("! {why}"), |(lane, below)| format!("{lane} {below}"))
    }

    #[test]
    fn a_url_belongs_to_the_upstream_whose_url_it_begins_with() {
        let mut routes = routes(None);
        assert_eq!(at(&mut routes, "https://a.test/v1/x?y"), "a /x?y");
        assert_eq!(at(&mut routes, "https://a.test/v10"), "b /v10");
        assert_eq!(at(&mut routes, "https://other.test/v1 2/ü"), "https://other.test /v1%202/%C3%BC");
        assert!(at(&mut routes, "/x").starts_with("! not a URL"));
        assert!(at(&mut routes, "ftp://x/").starts_with('!'));
    }

    #[test]
    fn paths_belong_to_the_upstream_that_was_named() {
        assert_eq!(at(&mut routes(Some("a")), "x/1"), "a /x/1");
        assert!(Routes::new(None, Some("a")).is_err());
    }
}
