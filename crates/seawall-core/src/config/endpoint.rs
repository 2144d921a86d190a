//! Endpoint patterns: `METHOD PATH`, where `*` stands for one segment and a closing `**` for the rest.

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// `None` matches any method.
    method: Option<String>,
    segments: Vec<Segment>,
    /// The pattern ends in `**`.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any,
}

impl PathPattern {
    /// Matches every request: the implicit last endpoint.
    #[must_use]
    pub const fn everything() -> Self {
        Self { method: None, segments: Vec::new(), open: true }
    }

    /// # Errors
    /// When it is not `METHOD PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "not a pattern; write METHOD PATH, as in \"GET /search\" or \"* /users/*/history\"";
        let (method, path) = text.split_once(' ').ok_or(FORM)?;
        let path = path.trim();
        if !path.starts_with('/') || path.contains(['?', '#', ' ']) {
            return Err(FORM.to_owned());
        }
        let method = match method {
            "*" => None,
            word if !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase()) => Some(word.to_owned()),
            word => return Err(format!("`{word}` is not a method; write it in capitals, or `*` for any")),
        };
        let mut segments = Vec::new();
        let mut open = false;
        for segment in path[1..].split('/') {
            if open {
                return Err("`**` stands for the rest, so nothing may follow it".to_owned());
            }
            match segment {
                "**" => open = true,
                "*" => segments.push(Segment::Any),
                literal if literal.contains('*') => return Err(format!("`{literal}`: `*` stands for a whole segment")),
                literal => segments.push(Segment::Literal(literal.to_owned())),
            }
        }
        Ok(Self { method, segments, open })
    }

    /// The only method that it matches; `None` matches any.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// `path` without its query, starting with `/`.
    #[must_use]
    pub fn takes(&self, method: &str, path: &str) -> bool {
        if self.method.as_deref().is_some_and(|own| own != method) {
            return false;
        }
        let mut rest = path.strip_prefix('/').unwrap_or(path).split('/');
        for segment in &self.segments {
            match (segment, rest.next()) {
                (Segment::Any, Some(part)) if !part.is_empty() => {}
                (Segment::Literal(literal), Some(part)) if literal == part => {}
                (Segment::Any | Segment::Literal(_), _) => return false,
            }
        }
        self.open || rest.next().is_none()
    }

    /// Whether this pattern matches everything that `other` matches, so that `other` behind it is never reached.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let methods = self.method.is_none() || self.method == other.method;
        let prefix = self.segments.len() <= other.segments.len()
            && self.segments.iter().zip(&other.segments).all(|(own, theirs)| *own == Segment::Any || own == theirs);
        let rest = self.open || (!other.open && self.segments.len() == other.segments.len());
        methods && prefix && rest
    }
}

impl std::fmt::Display for PathPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.method.as_deref().unwrap_or("*"))?;
        f.write_str(" ")?;
        for segment in &self.segments {
            match segment {
                Segment::Any => f.write_str("/*")?,
                Segment::Literal(text) => write!(f, "/{text}")?,
            }
        }
        if self.open { f.write_str("/**") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        PathPattern::parse(text).unwrap()
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_the_rest() {
        assert!(pattern("GET /search").takes("GET", "/search"));
        assert!(!pattern("GET /search").takes("POST", "/search"));
        assert!(pattern("* /users/*/history").takes("GET", "/users/a/history"));
        assert!(!pattern("* /users/*/history").takes("GET", "/users//history"));
        assert!(!pattern("* /users/*").takes("GET", "/users/a/b"));
        assert!(pattern("* /users/**").takes("GET", "/users/a/b"));
        assert!(pattern("GET /").takes("GET", "/"));
        assert!(PathPattern::everything().takes("PUT", "/anything"));
    }

    #[test]
    fn a_pattern_behind_a_wider_one_is_covered() {
        assert!(pattern("* /a/**").covers(&pattern("GET /a/b")));
        assert!(pattern("GET /a/*").covers(&pattern("GET /a/b")));
        assert!(!pattern("GET /a/b").covers(&pattern("GET /a/*")));
        assert!(!pattern("GET /a").covers(&pattern("POST /a")));
        assert!(!pattern("GET /a/*").covers(&pattern("GET /a/**")));
    }

    #[test]
    fn bad_patterns_are_explained() {
        for bad in ["/search", "GET search", "get /x", "GET /a*", "GET /**/x", "GET /x?y=1", ""] {
            assert!(PathPattern::parse(bad).is_err(), "{bad}");
        }
    }
}
