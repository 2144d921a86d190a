//! The plan of a replay: its letters, the reasons for which letters are held back, and the job that a letter becomes.

use super::letter_filter::{self, LetterFilter};
use crate::idempotency::fingerprint;
use crate::query::{QueryParameters, bad};
use crate::response::Refusal;
use bytes::Bytes;
use seawall_core::decide::CallProgress;
use seawall_core::id::CallId;
use seawall_core::policy::Rate;
use seawall_core::record::Class;
use seawall_core::time::Wall;
use seawall_core::units;
use seawall_engine::ad_hoc;
use seawall_engine::runtime::Live;
use seawall_store::dead::{Letter, LetterQuery, LetterStatus};
use seawall_store::job::{AD_HOC, JobOrigin, JobRequest, NewJob};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Maximum letters that one request may name.
const MAX_IDS: usize = 1000;
const MAX_NAME: usize = 100;
/// The name of automatic replays.
pub(crate) const REEVALUATION: &str = "reevaluation";

/// `ids`, or a `filter`: `{}` is every letter
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewReplay)]
pub(crate) struct ReplayWish {
    #[serde(default)]
    #[schema(max_items = 1000)]
    ids: Vec<String>,
    #[schema(value_type = Option<LetterFilter>)]
    filter: Option<BTreeMap<String, Value>>,
    #[schema(pattern = "^[1-9][0-9]{0,8}/(s|m|h|d)$", examples("10/s"))]
    rate: Option<String>,
    /// Those too that are held back otherwise.
    #[serde(default)]
    force: bool,
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
}

/// What is kept of a wish: everything that it meant in the moment in which it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Plan)]
pub(crate) struct ReplayPlan {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    #[serde(default)]
    pub filter: BTreeMap<String, String>,
    #[serde(default)]
    pub force: bool,
    /// Nobody asked for it: only what its rule allows, once, and so many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reevaluates: Option<u64>,
}

/// A validated request for a replay.
pub(crate) struct ReplayRequest {
    pub plan: ReplayPlan,
    pub rate: Option<Rate>,
    pub name: String,
}

impl ReplayWish {
    /// Parses a request. Relative times become absolute, and letters that are added later are excluded.
    pub(crate) fn read(text: &[u8], now: Wall) -> Result<ReplayRequest, Box<Refusal>> {
        let wish: Self = serde_json::from_slice(text).map_err(|error| bad(&format!("this is no replay: {error}")))?;
        if wish.ids.len() > MAX_IDS {
            return Err(bad(&format!("`ids` names at most {MAX_IDS} letters; use `filter` for more")));
        }
        if wish.ids.is_empty() == wish.filter.is_none() {
            return Err(bad("a replay names `ids` or a `filter`, and `{}` is every letter"));
        }
        let mut filter = BTreeMap::new();
        for (name, value) in wish.filter.unwrap_or_default() {
            let Value::String(text) = value else { return Err(bad(&format!("`filter.{name}` is a text"))) };
            filter.insert(name, text);
        }
        if wish.ids.is_empty() {
            filter.entry("until".to_owned()).or_insert_with(|| now.to_string());
        }
        let rate = wish.rate.as_deref().map(units::rate).transpose().map_err(|why| bad(&format!("`rate`: {why}")))?;
        if rate.is_some_and(|rate| rate.count == 0) {
            return Err(bad("`rate` is above zero; pause a replay to hold it"));
        }
        let name = wish.name.unwrap_or_else(|| "replay".to_owned());
        if name.is_empty() || name.len() > MAX_NAME || name == REEVALUATION {
            return Err(bad(&format!("`name` has 1 to {MAX_NAME} characters and is not `{REEVALUATION}`")));
        }
        let plan = ReplayPlan { ids: wish.ids, filter, force: wish.force, reevaluates: None };
        plan.filter()?;
        Ok(ReplayRequest { plan, rate, name })
    }
}

impl ReplayPlan {
    /// Returns the letters of the plan, as far as the store can filter them.
    pub(crate) fn filter(&self) -> Result<LetterQuery, Box<Refusal>> {
        let pairs = self.filter.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let query = QueryParameters::of(pairs, letter_filter::MEANT)?;
        let ids: Option<Vec<CallId>> = self.ids.iter().map(|id| CallId::parse(id)).collect();
        let ids = ids.ok_or_else(|| bad("`ids` are ids of dead letters"))?;
        Ok(LetterQuery { ids, status: Some(LetterStatus::Kept), ..letter_filter::filter(&query)? })
    }

    /// Returns why a letter is held back, if it is.
    pub(crate) fn holds_back(&self, letter: &Letter, live: &Live) -> Option<String> {
        let unforced = || crate::letter::why_not(&letter.letter).filter(|_| !self.force).map(str::to_owned);
        self.refuses(letter, live).or_else(unforced)
    }

    /// Returns whether `force` would send a held-back letter.
    pub(crate) fn yields_to_force(&self, letter: &Letter, live: &Live) -> bool {
        !self.force && self.refuses(letter, live).is_none()
    }

    /// Returns why a letter is not replayed even with `force`.
    fn refuses(&self, letter: &Letter, live: &Live) -> Option<String> {
        let kept = &letter.letter;
        if kept.upstream != ad_hoc::NAME && live.named(&kept.upstream).is_none() {
            return Some(format!("no upstream named `{}` is configured any more", kept.upstream));
        }
        if kept.body_cut {
            return Some("the body was longer than what is kept: there is nothing whole to send".to_owned());
        }
        let is_poison = kept.code == crate::letter::POISON;
        if self.reevaluates.is_some() && (is_poison || !is_worth_a_second_look(kept.class) || letter.replays > 0) {
            return Some("re-evaluation tries what may pass, once".to_owned());
        }
        None
    }
}

/// Returns whether a failure may pass by itself.
const fn is_worth_a_second_look(class: Class) -> bool {
    matches!(class, Class::Transient | Class::Quota | Class::Ambiguous)
}

/// Returns the slowest replay rate that the policies of these upstreams allow.
pub(crate) fn slowest(upstreams: &[String], live: &Live) -> Rate {
    let named = upstreams.iter().filter_map(|name| live.named(name)).flat_map(|upstream| &upstream.endpoints);
    let rates = named.map(|endpoint| endpoint.spec.policy.dead_letter.replay_rate).filter(|rate| rate.count > 0);
    rates.min_by(|a, b| a.per_second_f64().total_cmp(&b.per_second_f64())).unwrap_or(Rate::per_second(10))
}

/// Builds the job of a replayed letter. It sends the letter's idempotency key, so that the upstream can detect a repetition, but it does
/// not reserve the key: a caller who submits the call anew does not get the replay's result.
pub(crate) fn job(letter: &Letter, id: CallId, now: Wall) -> NewJob {
    let kept = &letter.letter;
    let JobRequest { method, path, headers, body } = kept.request.clone();
    let content_type = headers.iter().find(|(name, _)| name == "content-type").map_or(&b""[..], |(_, value)| value.as_bytes());
    NewJob {
        id,
        upstream: if kept.upstream == ad_hoc::NAME { AD_HOC.to_owned() } else { kept.upstream.clone() },
        tenant: kept.tenant.clone(),
        caller: kept.caller.clone(),
        priority: 0,
        fingerprint: fingerprint(&method, &path, content_type, &body),
        request: JobRequest { method, path, headers: headers.clone(), body: Bytes::clone(&body) },
        idempotency_key: kept.idempotency_key.clone(),
        dedup: None,
        correlation_id: kept.correlation_id.clone(),
        callback: None,
        run_at: now,
        expires_at: None,
        origin: JobOrigin::Replay { letter: kept.id.to_string() },
        progress: CallProgress::default(),
        history: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ReplayPlan, String> {
        ReplayWish::read(text.as_bytes(), Wall(0)).map(|asked| asked.plan).map_err(|refusal| refusal.detail)
    }

    #[test]
    fn a_wish_is_frozen_when_it_is_made() {
        let plan = read(r#"{"filter":{"upstream":"api"}}"#).unwrap();
        assert_eq!(plan.filter["until"], Wall(0).to_string());
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<ReplayPlan>(&text).unwrap(), plan);
    }

    #[test]
    fn wishes_that_mean_nothing_or_too_much_are_refused() {
        for (text, why) in [
            ("{}", "names `ids` or a `filter`"),
            (r#"{"ids":["x"]}"#, "ids of dead letters"),
            (r#"{"filter":{"surprise":"1"}}"#, "no parameter `surprise`"),
            (r#"{"filter":{"class":"odd"}}"#, "`class` is"),
            (r#"{"filter":{},"rate":"0/s"}"#, "above zero"),
            (r#"{"filter":{},"rate":"10"}"#, "missing unit"),
            (r#"{"filter":{},"name":"reevaluation"}"#, "`name` has"),
        ] {
            assert!(read(text).is_err_and(|told| told.contains(why)), "{text}");
        }
    }
}
