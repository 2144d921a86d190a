//! Dot segments. Paths are relayed byte for byte, and the server resolves `..`. This module finds a path that would climb above its base
//! path, in each way in which servers read paths.

/// The most decodings of a path on its way: by a proxy, by a server, by an application.
const MAX_DECODINGS: usize = 3;

/// Whether a path climbs above its own beginning, ignoring its query.
#[must_use]
pub fn escapes(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default().as_bytes();
    // Few paths have either, and only these can spell `..`.
    if !path.contains(&b'%') && !path.windows(2).any(|pair| pair == b"..") {
        return false;
    }
    let mut decoded = path.to_vec();
    for _ in 0..=MAX_DECODINGS {
        // As RFC 3986 says, and as servers read paths that merge slashes, treat a backslash as one, or give segments parameters.
        if leaves_base(&decoded, b"/", false) || leaves_base(&decoded, b"/\\", true) {
            return true;
        }
        let once_more = decode(&decoded);
        if once_more == decoded {
            return false;
        }
        decoded = once_more;
    }
    // A path that is escaped this often is treated as an attack.
    true
}

/// Whether more segments go up than have gone down. With `merges`, empty segments do not count, nor what follows a `;`.
fn leaves_base(path: &[u8], separators: &[u8], merges: bool) -> bool {
    let mut depth = 0_usize;
    let path = path.strip_prefix(b"/").unwrap_or(path);
    for segment in path.split(|byte| separators.contains(byte)) {
        let segment = if merges { segment.split(|byte| *byte == b';').next().unwrap_or_default() } else { segment };
        match &*undotted(segment) {
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            b"." => {}
            b"" if merges => {}
            _ => depth += 1,
        }
    }
    false
}

/// A segment with `%2e` read as a dot (RFC 3986 §6.2.2.2).
fn undotted(segment: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(segment.len());
    let mut rest = segment;
    while let [first, tail @ ..] = rest {
        if let [b'%', b'2', b'e' | b'E', after @ ..] = rest {
            read.push(b'.');
            rest = after;
        } else {
            read.push(*first);
            rest = tail;
        }
    }
    read
}

fn decode(path: &[u8]) -> Vec<u8> {
    let mut read = Vec::with_capacity(path.len());
    let mut rest = path;
    let hex = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    while let [first, tail @ ..] = rest {
        match tail {
            [high, low, after @ ..] if *first == b'%' => {
                if let (Some(high), Some(low)) = (hex(*high), hex(*low)) {
                    read.push(high * 16 + low);
                    rest = after;
                    continue;
                }
            }
            _ => {}
        }
        read.push(*first);
        rest = tail;
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_climb_above_their_beginning_are_found_however_they_are_spelled() {
        for path in [
            "/..",
            "/../admin",
            "/a/../../admin",
            "/./../admin",
            "/a/b/../../../admin?x=1",
            "/%2e%2e/admin",
            "/%2E./admin",
            "/.%2e/admin",
            "/a//../../admin",
            "/a/%2e/../../admin",
            "/..%2fadmin",
            "/a%2f..%2f..%2fadmin",
            "/a%2fb/../../admin",
            "/..%5Cadmin",
            "/..\\admin",
            "/a\\..\\..\\admin",
            "/%252e%252e/admin",
            "/%252e%252e%252fadmin",
            "/..;/admin",
            "/..;a=b/admin",
            "/%25252525252e",
            "..",
            "../admin",
        ] {
            assert!(escapes(path), "{path}");
        }
    }

    #[test]
    fn other_paths_stay_as_they_are() {
        for path in [
            "/",
            "",
            "/a/../b",
            "/a/b/../../c",
            "/.",
            "/./a",
            "/...",
            "/..a",
            "/a..b",
            "/a/..b/..",
            "/a?x=/../..",
            "/%2e%2ea",
            "/100%",
            "/a%2fb",
            "/a%20b/%C3%A9",
            "/a;v=1/b",
            "/a/%2e%2e",
            "/%25",
        ] {
            assert!(!escapes(path), "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_path_that_is_let_through_stays_below_its_base(pieces in proptest::collection::vec("\\.\\.|\\.|a|%2e|%2E|\\.%2e|%2f|/|b;c", 0..12)) {
            let path = format!("/{}", pieces.join("/"));
            if !escapes(&path) {
                // As on a server that decodes first and then follows RFC 3986.
                let decoded = String::from_utf8(decode(path.as_bytes())).unwrap();
                let mut base = vec!["base"];
                for segment in decoded.split('/').skip(1) {
                    match segment {
                        ".." => drop(base.pop()),
                        "." => {}
                        segment => base.push(segment),
                    }
                    prop_assert_eq!(base.first(), Some(&"base"), "{}", path);
                }
            }
        }
    }
}
