//! A minimal URL parser for the configuration: scheme, host, port and a path prefix, without parts that could hold a secret.

/// An absolute http(s) URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Without a trailing slash; empty for the root.
    pub path: String,
}

impl Base {
    /// # Errors
    /// When it is not an absolute http(s) URL, or has user information, a query or a fragment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let base = Self::parse_callback(text)?;
        if text.contains(['?', '#']) {
            return Err("a base URL has no query and no fragment".to_owned());
        }
        Ok(base)
    }

    /// As `parse`, but a query is allowed: callbacks and web hooks may need one.
    ///
    /// # Errors
    /// When it is not an absolute http(s) URL or has user information.
    pub fn parse_callback(text: &str) -> Result<Self, String> {
        let (tls, rest) = if let Some(rest) = text.strip_prefix("https://") {
            (true, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (false, rest)
        } else {
            return Err("not an absolute URL; write it as \"https://api.example.com/v1\"".to_owned());
        };
        if text.bytes().any(|b| b <= b' ' || b == 0x7f || b == b'\\') {
            return Err("a URL has no spaces, backslashes or control characters".to_owned());
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if authority.contains('@') {
            return Err("inline secret: credentials do not belong into a URL; use `auth`".to_owned());
        }
        let (host, port) = split_port(authority, if tls { 443 } else { 80 })?;
        let path = tail.split(['?', '#']).next().unwrap_or("").trim_end_matches('/');
        Ok(Self { tls, host: host.to_ascii_lowercase(), port, path: path.to_owned() })
    }

    /// `host`, or `host:port` if the port is not the scheme's default: the value of the Host header.
    #[must_use]
    pub fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        if self.port == default { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Whether the two share scheme, host and port. A key is bound to its origin.
    #[must_use]
    pub fn same_origin(&self, other: &Self) -> bool {
        self.tls == other.tls && self.host == other.host && self.port == other.port
    }
}

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.path)
    }
}

fn split_port(authority: &str, default: u16) -> Result<(&str, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or("an IPv6 address is written in brackets")?;
            rest[..end].parse::<std::net::Ipv6Addr>().map_err(|_| "not an IPv6 address".to_owned())?;
            (&authority[..end + 2], &authority[end + 2..])
        }
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    let fine =
        !host.is_empty() && (host.starts_with('[') || host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_')));
    if !fine {
        return Err(format!("`{host}` cannot be a host name"));
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default,
        Some(digits) => digits.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{digits}` is not a port"))?,
        None => return Err("there is something behind the host that is no port".to_owned()),
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart_and_together() {
        let base = Base::parse("https://API.example.com:8443/v3/").unwrap();
        assert_eq!(base, Base { tls: true, host: "api.example.com".into(), port: 8443, path: "/v3".into() });
        assert_eq!(base.to_string(), "https://api.example.com:8443/v3");
        assert_eq!(Base::parse("http://[::1]:80").unwrap().to_string(), "http://[::1]");
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "",
            "example.com",
            "ftp://x",
            "http://",
            "http://u:p@h",
            "http://h?x=1",
            "http://h:0",
            "http://h:99999",
            "http://a b",
            "http://[::1",
            "http://h#f",
            "http://h\\x",
        ] {
            assert!(Base::parse(bad).is_err(), "{bad}");
        }
    }
}
