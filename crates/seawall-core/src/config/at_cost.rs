//! Unsafe requests that may be sent again without a key, because a second execution costs only money: a completion of a language model, or
//! a read that its API sends as a POST.

use crate::classify::pattern::Pattern;
use crate::policy::Repeat;

/// The requests of an endpoint that may be repeated at cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtCost {
    pub repeat: Repeat,
    /// Globs of paths, from the API's preset.
    pub paths: Vec<Pattern>,
    /// Globs of `X-Amz-Target`, which names the operation in APIs that send every operation as a POST to one path.
    pub operations: Vec<Pattern>,
}

impl AtCost {
    pub const OPERATION: &'static str = "x-amz-target";

    /// Nothing is repeated at cost.
    pub const NONE: Self = Self { repeat: Repeat::Never, paths: Vec::new(), operations: Vec::new() };

    /// Whether no request may be repeated, whatever its path.
    #[must_use]
    pub fn is_none(&self) -> bool {
        match self.repeat {
            Repeat::Never => true,
            Repeat::AtCost => false,
            Repeat::Declared => self.paths.is_empty() && self.operations.is_empty(),
        }
    }

    /// Whether a request may be repeated; `path` is without its query, `operation` reads the request's headers.
    #[must_use]
    pub fn allows<'a>(&self, path: &str, operation: impl FnOnce() -> Option<&'a str>) -> bool {
        match self.repeat {
            Repeat::Never => false,
            Repeat::AtCost => true,
            Repeat::Declared => {
                is_plain(path) && self.paths.iter().any(|pattern| pattern.matches(path))
                    || (!self.operations.is_empty()
                        && operation().is_some_and(|named| self.operations.iter().any(|pattern| pattern.matches(named))))
            }
        }
    }
}

/// Whether all servers read a path the same way. They differ on escapes and on empty or dotted segments.
fn is_plain(path: &str) -> bool {
    !path.contains(['%', ';', '\\']) && !path.contains("//") && !path.contains("/.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn of(policy: &str) -> AtCost {
        let text = format!("[upstreams.a]\nurl = \"https://a.test\"\n{policy}");
        config::load("t", text.as_bytes()).unwrap().upstreams[0].endpoints[0].policy.at_cost.clone()
    }

    #[test]
    fn completions_may_be_repeated_and_what_makes_something_may_not() {
        let openai = of("preset = \"openai\"");
        assert!(openai.allows("/v1/chat/completions", || None) && openai.allows("/responses", || None));
        for path in [
            "/v1/fine_tuning/jobs",
            "/v1/fine_tuning/jobs/responses",
            "/v1/files",
            "/v1/files%2Fchat/completions",
            "/openai/deployments/a/../../files;/chat/completions",
        ] {
            assert!(!openai.allows(path, || None), "{path}");
        }
        assert!(!of("preset = \"openai\"\nrepeat = \"never\"").allows("/v1/chat/completions", || None));
        assert!(!of("").allows("/v1/chat/completions", || None));
        assert!(of("repeat = \"at-cost\"").allows("/anything", || None));
    }

    #[test]
    fn reads_that_are_sent_as_a_post_may_be_repeated() {
        let aws = of("preset = \"aws\"");
        assert!(aws.allows("/", || Some("DynamoDB_20120810.GetItem")));
        assert!(!aws.allows("/", || Some("DynamoDB_20120810.UpdateItem")));
        assert!(!aws.allows("/", || Some("AWSCognitoIdentityProviderService.GetUserAttributeVerificationCode")));
        assert!(!aws.allows("/", || None));
    }
}
