//! References and addresses: secrets by name, stores by URL, listeners, networks, limit keys, injection points.

use crate::policy::LimitKey;

/// The place of a secret. The core does not read it; the program does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretRef {
    Env(String),
    File(String),
}

impl SecretRef {
    /// Parses a reference, if the text is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        secret(text).ok()
    }
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

pub(crate) fn secret(text: &str) -> Result<SecretRef, String> {
    if let Some(name) = text.strip_prefix("env:") {
        let fine = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        return if fine {
            Ok(SecretRef::Env(name.to_owned()))
        } else {
            Err("`env:` needs the name of an environment variable, as in \"env:API_KEY\"".to_owned())
        };
    }
    match text.strip_prefix("file:") {
        Some(path) if !path.is_empty() => Ok(SecretRef::File(path.to_owned())),
        Some(_) => Err("`file:` needs a path, as in \"file:/run/secrets/key\"".to_owned()),
        None => Err("inline secret: write where it is kept instead, as \"env:NAME\" or \"file:PATH\"".to_owned()),
    }
}

/// Parses a header value that ends with a reference to a secret, alone or after a space. Returns the text before it, and the reference.
#[must_use]
pub fn header_secret(value: &str) -> Option<(&str, SecretRef)> {
    let start = value.rfind(' ').map_or(0, |space| space + 1);
    Some((&value[..start], SecretRef::parse(&value[start..])?))
}

pub(crate) fn place(text: &str, prefixes: &[&str]) -> Result<(), String> {
    let Some(prefix) = prefixes.iter().find(|prefix| text.starts_with(**prefix)) else {
        let known: Vec<&str> = prefixes.iter().filter(|prefix| !matches!(**prefix, "env:" | "file:")).copied().collect();
        return Err(format!("must start with one of {}", known.join(", ")));
    };
    if matches!(*prefix, "env:" | "file:") {
        return secret(text).map(drop);
    }
    if text == *prefix && !matches!(*prefix, "local") {
        return Err(format!("`{prefix}` needs something behind it"));
    }
    let inline = text.split_once("://").and_then(|(_, rest)| rest.split('/').next()).and_then(|authority| authority.split_once('@'));
    if inline.is_some_and(|(userinfo, _)| userinfo.contains(':')) {
        return Err("inline secret: put the whole URL into an environment variable and write \"env:NAME\"".to_owned());
    }
    Ok(())
}

pub(crate) fn listen(text: &str) -> Result<(String, u16), String> {
    const FORM: &str = "not an address; write HOST:PORT, as in \"127.0.0.1:7329\" or \"[::1]:7329\"";
    let (host, port) = text.rsplit_once(':').ok_or(FORM)?;
    let port = port.parse().map_err(|_| FORM)?;
    match host {
        "*" => Err(format!("not an address; write \"0.0.0.0:{port}\" for every address of this machine")),
        _ if is_listener_host(host) => Ok((host.to_owned(), port)),
        _ => Err(FORM.to_owned()),
    }
}

/// A name, an IPv4 address, or an IPv6 address in brackets.
fn is_listener_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(bare) => bare.split('%').next().is_some_and(|bare| bare.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    }
}

/// Whether a listener can only be reached from this machine.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let Ok((host, _)) = listen(address) else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(crate) fn cidr(text: &str) -> Result<ipnet::IpNet, String> {
    let network = text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from));
    network.map(canonical).map_err(|_| "not a network; write it as \"10.0.0.0/8\" or \"fd00::/8\"".to_owned())
}

/// Converts IPv4-mapped networks: `::ffff:10.0.0.0/104` becomes `10.0.0.0/8`, so that addresses compare in one family.
fn canonical(network: ipnet::IpNet) -> ipnet::IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (address @ std::net::IpAddr::V4(_), Some(length)) if network.max_prefix_len() == 128 => {
            ipnet::IpNet::new(address, length).unwrap_or(network)
        }
        _ => network,
    }
}

pub(crate) fn limit_key(text: &str) -> Result<LimitKey, String> {
    const WORDS: &[&str] = &["global", "ip", "caller", "user", "tenant", "upstream", "endpoint", "key"];
    Ok(match text {
        "global" => LimitKey::Global,
        "ip" => LimitKey::Ip,
        "caller" => LimitKey::Caller,
        "user" => LimitKey::User,
        "tenant" => LimitKey::Tenant,
        "upstream" => LimitKey::Upstream,
        "endpoint" => LimitKey::Endpoint,
        "key" => LimitKey::Key,
        other => match other.strip_prefix("header:") {
            Some(name) if is_header_name(name) => LimitKey::Header(name.to_ascii_lowercase()),
            Some(_) => return Err("`header:` needs a header name, as in \"header:x-account\"".to_owned()),
            None => {
                let near = crate::spelling::nearest(other, WORDS.iter().copied())
                    .map(|near| format!("; did you mean \"{near}\"?"))
                    .unwrap_or_default();
                return Err(format!("`{other}` is not one of {}, header:NAME{near}", WORDS.join(", ")));
            }
        },
    })
}

/// RFC 9110's `token`.
#[must_use]
pub(crate) fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Headers for framing and routing, which only the gateway may write.
const FRAMING: [&str; 9] =
    ["connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// # Errors
/// When this is not the name of a header that may be added to a request.
pub(crate) fn header(name: &str) -> Result<(), String> {
    if !is_header_name(name) {
        return Err(format!("`{name}` cannot be a header name"));
    }
    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
        return Err(format!("`{name}` says how the request is sent and cannot say anything else"));
    }
    Ok(())
}

/// # Errors
/// When this cannot be the value of a header: it would end the header, or recipients would refuse it.
pub(crate) fn header_value(text: &str) -> Result<(), String> {
    match text.chars().find(|c| !matches!(c, ' '..='~')) {
        Some(c) => Err(format!("cannot be the value of a header: {c:?} is not a printable ASCII character")),
        None => Ok(()),
    }
}

/// # Errors
/// When this cannot be a string in `RateLimit` fields (RFC 9651) without changing.
pub(crate) fn label(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > 64 {
        return Err("a name has 1 to 64 characters".to_owned());
    }
    match text.chars().find(|c| !matches!(c, ' '..='~') || matches!(c, '"' | '\\')) {
        Some(c) => Err(format!("{c:?} cannot be in a name: it is sent in headers, so use printable ASCII without quotes and backslashes")),
        None => Ok(()),
    }
}

/// Whether two listeners use the same port of the same address.
#[must_use]
pub(crate) fn is_same_listener(a: &str, b: &str) -> bool {
    let (Ok((a, port)), Ok((b, other))) = (listen(a), listen(b)) else { return false };
    let address = |host: &str| host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().ok();
    let (one, two) = (address(&a), address(&b));
    // A wildcard takes its port on every address. `localhost` is one of the loopback addresses, depending on the machine.
    let every = |address: Option<std::net::IpAddr>| address.is_some_and(|address| address.is_unspecified());
    let first =
        |address: Option<std::net::IpAddr>| address.is_some_and(|address| ["127.0.0.1", "::1"].contains(&address.to_string().as_str()));
    let is_local = |host: &str| host.eq_ignore_ascii_case("localhost");
    let is_same = a.eq_ignore_ascii_case(&b) || one.is_some() && one == two;
    // The system chooses another port each time for port 0.
    port != 0 && port == other && (is_same || every(one) || every(two) || is_local(&a) && first(two) || is_local(&b) && first(one))
}

/// The place of a credential in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inject {
    Query(String),
    /// The value with `{secret}` replaced.
    Header {
        name: String,
        template: String,
    },
    Basic,
}

impl Inject {
    /// # Errors
    /// When the text is none of these forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "basic" {
            return Ok(Self::Basic);
        }
        if let Some(name) = text.strip_prefix("query:") {
            let fine = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~[]".contains(&b));
            return if fine {
                Ok(Self::Query(name.to_owned()))
            } else {
                Err("`query:` needs a parameter name, as in \"query:key\"".to_owned())
            };
        }
        let Some(rest) = text.strip_prefix("header:") else {
            return Err("write \"query:NAME\", \"header:NAME\", \"header:Authorization: Bearer {secret}\" or \"basic\"".to_owned());
        };
        let (name, template) = rest.split_once(':').map_or((rest, "{secret}"), |(name, template)| (name, template.trim()));
        if !is_header_name(name.trim()) {
            return Err(format!("`{}` cannot be a header name", name.trim()));
        }
        if template.matches("{secret}").count() != 1 {
            return Err("the header's value must contain {secret} once".to_owned());
        }
        Ok(Self::Header { name: name.trim().to_ascii_lowercase(), template: template.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_references() {
        assert_eq!(secret("env:YT_A"), Ok(SecretRef::Env("YT_A".into())));
        for bad in ["sk-123", "env:", "env:1A", "file:", "env:A-B"] {
            assert!(secret(bad).is_err(), "{bad}");
        }
        assert!(place("postgres://u:p@h/db", &["postgres://"]).unwrap_err().contains("inline secret"));
        assert!(place("postgres://u@h/db", &["postgres://"]).is_ok());
    }

    #[test]
    fn a_header_may_end_with_a_reference() {
        assert_eq!(header_secret("Bearer env:T"), Some(("Bearer ", SecretRef::Env("T".into()))));
        assert_eq!(header_secret("file:/run/t"), Some(("", SecretRef::File("/run/t".into()))));
        for plain in ["Bearer abc", "", "environment", "env:", "Bearer env:T x"] {
            assert_eq!(header_secret(plain), None, "{plain}");
        }
    }

    #[test]
    fn mapped_networks_are_those_of_ipv4() {
        assert_eq!(cidr("::ffff:10.0.0.0/104"), cidr("10.0.0.0/8"));
        assert_eq!(cidr("::ffff:10.1.2.3"), cidr("10.1.2.3"));
        assert_eq!(cidr("fd00::/8").unwrap().to_string(), "fd00::/8");
    }

    #[test]
    fn listeners_know_whether_they_are_local() {
        for local in ["127.0.0.1:1", "[::1]:1", "localhost:80"] {
            assert!(is_loopback(local), "{local}");
        }
        for open in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            assert!(!is_loopback(open), "{open}");
        }
        assert!(listen("::1:80").is_err() && listen("80").is_err() && listen("a:99999").is_err());
        for bad in ["*:17777", "[::1:80", "[x]:80", "a b:80", "http://a:80", "127.0.0.1/8:80"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listeners_meet_under_other_names_of_an_address() {
        for same in ["127.0.0.1:7329", "localhost:7329", "LOCALHOST:7329", "0.0.0.0:7329", "[::]:7329"] {
            assert!(is_same_listener("127.0.0.1:7329", same) && is_same_listener(same, "127.0.0.1:7329"), "{same}");
        }
        assert!(is_same_listener("[::1]:80", "[0:0:0:0:0:0:0:1]:80") && is_same_listener("[::1]:80", "localhost:80"));
        for other in ["127.0.0.1:7330", "127.0.0.2:7329", "localhost:7330", "example.test:7329"] {
            assert!(!is_same_listener("127.0.0.1:7329", other), "{other}");
        }
    }

    #[test]
    fn injection_points_parse() {
        let bearer = Inject::parse("header:Authorization: Bearer {secret}");
        assert_eq!(bearer, Ok(Inject::Header { name: "authorization".into(), template: "Bearer {secret}".into() }));
        assert_eq!(Inject::parse("query:key"), Ok(Inject::Query("key".into())));
        for bad in ["query:", "header:", "header:X: nothing", "cookie:x", "query:a&b"] {
            assert!(Inject::parse(bad).is_err(), "{bad}");
        }
    }
}
