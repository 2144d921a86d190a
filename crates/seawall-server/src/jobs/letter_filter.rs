//! The filter of dead letters, for lists, exports and replays.

use crate::json_shapes::{ClassWord, SeverityWord, Time};
use crate::query::QueryParameters;
use crate::response::Refusal;
use seawall_core::policy::Severity;
use seawall_core::record::Class;
use seawall_core::time::Wall;
use seawall_store::dead::{LetterQuery, LetterStatus};
use utoipa::ToSchema;

/// Which letters are meant.
#[derive(Debug, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "a description of what `filter` reads")]
pub(crate) struct LetterFilter {
    #[schema(nullable = false)]
    upstream: Option<String>,
    #[schema(nullable = false)]
    endpoint: Option<String>,
    #[schema(nullable = false)]
    class: Option<ClassWord>,
    #[schema(nullable = false)]
    code: Option<String>,
    #[schema(nullable = false)]
    severity: Option<SeverityWord>,
    #[schema(nullable = false)]
    since: Option<Time>,
    #[schema(nullable = false)]
    until: Option<Time>,
    /// A part of the URL, the detail or the correlation id.
    #[schema(nullable = false)]
    q: Option<String>,
}

/// Parameters that select letters, in lists and in actions.
pub(crate) const MEANT: &[&str] = &["upstream", "endpoint", "class", "code", "severity", "since", "until", "q"];

pub(crate) fn filter(query: &QueryParameters) -> Result<LetterQuery, Box<Refusal>> {
    let owned = |name: &str| query.text(name).map(str::to_owned);
    let time = "a time like 2030-01-31T12:00:00Z";
    Ok(LetterQuery {
        ids: Vec::new(),
        upstream: owned("upstream"),
        endpoint: owned("endpoint"),
        class: query.read("class", "transient, permanent, ambiguous, quota or auth", Class::from_word)?,
        code: owned("code"),
        severity: query.read("severity", "review or pager", Severity::from_word)?,
        since: query.read("since", time, Wall::parse)?,
        until: query.read("until", time, Wall::parse)?,
        // Replayed letters are no longer dead; they are shown on request.
        status: query.read("status", "kept, replaying or replayed", LetterStatus::parse)?,
        text: owned("q"),
    })
}
