//! The routes to an upstream besides its name: hosts and ports, each for one upstream only.

use super::fields::as_table;
use super::model::{Config, UpstreamConfig};
use super::node::{Node, Tree};
use super::place;
use super::problem::Diagnostic;
use super::url::Base;
use std::collections::BTreeMap;

pub(super) fn check(tree: &Tree, config: &Config, problems: &mut Vec<Diagnostic>) {
    let own =
        |upstream: &UpstreamConfig, key: &str| -> Option<&Node> { as_table(tree.table("upstreams")?.node(&upstream.name)?)?.node(key) };
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for upstream in &config.upstreams {
        let Some(node) = own(upstream, "hosts") else { continue };
        let mut refuse =
            |why: String| problems.push(Diagnostic::new(node.origin.span.clone(), format!("upstreams.{}.hosts", upstream.name), why));
        for host in &upstream.hosts {
            if !is_host(host) {
                refuse(format!("`{host}` is no host; write \"api.example.com\", or \"api.example.com:8443\" for one port only"));
            }
            if let Some(other) = taken.insert(host.to_ascii_lowercase(), &upstream.name) {
                refuse(format!("`{host}` is a host of `upstreams.{other}` already"));
            }
        }
    }
    let server = &config.server;
    let mut listeners = vec![("server.listen".to_owned(), &server.listen), ("server.admin".to_owned(), &server.admin)];
    for upstream in &config.upstreams {
        let Some(address) = &upstream.listen else { continue };
        let path = format!("upstreams.{}.listen", upstream.name);
        // An upstream is found by its address, so two may not share one, not even with port 0.
        let is_same = |known: &&(String, &String)| {
            place::is_same_listener(known.1, address) || (known.0.starts_with("upstreams.") && known.1 == address)
        };
        if let (Some((other, _)), Some(node)) = (listeners.iter().find(is_same), own(upstream, "listen")) {
            problems.push(Diagnostic::new(node.origin.span.clone(), &path, format!("`{address}` is the address of `{other}` already")));
        }
        listeners.push((path, address));
    }
}

/// A host name or address, with a port or without one.
fn is_host(text: &str) -> bool {
    Base::parse(&format!("http://{text}")).is_ok_and(|base| base.path.is_empty() && !text.ends_with('/'))
}

#[cfg(test)]
mod tests {
    fn load(a: &str, b: &str) -> Result<(), String> {
        let text = format!("[upstreams.a]\nurl = \"http://a.test\"\n{a}\n[upstreams.b]\nurl = \"http://b.test\"\n{b}\n");
        crate::config::load("t", text.as_bytes()).map(drop).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn a_host_belongs_to_one_upstream() {
        let hosts = |a: &str, b: &str| load(&format!("hosts = [\"{a}\"]"), &format!("hosts = [\"{b}\"]"));
        assert_eq!(hosts("x.test", "y.test"), Ok(()));
        assert_eq!(hosts("x.test", "x.test:8443"), Ok(()), "one port of it may be another's");
        let refused = hosts("x.test", "X.test").unwrap_err();
        assert!(refused.contains("`X.test` is a host of `upstreams.a` already"), "{refused}");
        for bad in ["https://x.test", "x.test/v1", "x.test:port", ""] {
            let refused = hosts("a.test", bad).unwrap_err();
            assert!(refused.contains("t:6:9") && refused.contains("is no host"), "{refused}");
        }
    }

    #[test]
    fn a_port_belongs_to_one_upstream() {
        let ports = |a: &str, b: &str| load(&format!("listen = \"{a}\""), &format!("listen = \"{b}\""));
        assert_eq!(ports("127.0.0.1:7401", "127.0.0.1:7402"), Ok(()));
        assert_eq!(ports("127.0.0.1:0", "127.0.0.2:0"), Ok(()));
        for (a, b) in [("127.0.0.1:7401", "127.0.0.1:7401"), ("0.0.0.0:7401", "127.0.0.1:7401"), ("127.0.0.1:0", "127.0.0.1:0")] {
            let refused = ports(a, b).unwrap_err();
            assert!(refused.contains("t:6:10") && refused.contains("is the address of `upstreams.a.listen` already"), "{refused}");
        }
        let refused = ports("127.0.0.1:7329", "127.0.0.1:7330").unwrap_err();
        assert!(refused.contains("of `server.listen` already") && refused.contains("of `server.admin` already"), "{refused}");
    }
}
