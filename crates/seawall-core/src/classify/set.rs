//! An ordered list of rules, indexed by status, so that a plain result needs only a table look-up.

use crate::record::{Class, ErrorKind, Scope};
use crate::time::{Nanos, Wall};

use super::ObservedResult;
use super::body::ParsedBody;
use super::rules::Rule;
use super::wait::Hint;

/// Statuses 100..=999, then the kinds of error.
const STATUSES: usize = 900;
/// The largest index is reserved for "no rule".
const MAX_RULES: usize = u16::MAX as usize;

/// The classification of a result.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classification {
    pub class: Class,
    pub scope: Scope,
    pub wait: Hint,
    /// The addition to a wait of `UntilReset`; the other waits include it already.
    pub skew: Nanos,
    /// Index into [`RuleSet::rules`]; `None` if no rule matched, as with most successes.
    pub rule: Option<u16>,
    /// Whether a rule other than a catch-all matched. Always true for successes.
    pub named: bool,
    pub unprocessed: bool,
    /// The upstream is not responsible: its breaker counts neither a failure nor a success.
    pub blameless: bool,
}

impl Classification {
    /// A success that no rule matched.
    pub const SUCCESS: Self = Self {
        class: Class::Success,
        scope: Scope::Call,
        wait: Hint::None,
        skew: Nanos::ZERO,
        rule: None,
        named: true,
        unprocessed: false,
        blameless: false,
    };
}

/// The rules to try once the status is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct BodyPlan {
    /// In order; the last may be a plain rule, which then always matches.
    candidates: Vec<u16>,
    needs_body: bool,
}

#[derive(Clone, Debug)]
pub struct RuleSet {
    rules: Vec<Rule>,
    /// For each status and error the index of its plan. Most share one, which keeps a set small.
    table: Vec<u16>,
    plans: Vec<BodyPlan>,
}

impl RuleSet {
    /// Ignores rules beyond 65 535.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        let statuses = (100..=999).map(Ok);
        let errors = ErrorKind::ALL.iter().copied().map(Err);
        let mut plans: Vec<BodyPlan> = Vec::new();
        let table = statuses.chain(errors).map(|result| {
            let plan = BodyPlan::of(&rules, result);
            let place = plans.iter().position(|known| *known == plan).unwrap_or_else(|| {
                plans.push(plan);
                plans.len() - 1
            });
            u16::try_from(place).unwrap_or(u16::MAX)
        });
        let table = table.collect();
        Self { rules, table, plans }
    }

    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Classifies a result. The first matching rule decides; a response below 400 that no rule matches is a success, and any other gets its
    /// status's usual class.
    pub fn classify(&self, seen: &ObservedResult<'_>, now: Wall) -> Classification {
        let body = ParsedBody::new(seen.body);
        for &index in &self.plan(seen.result).candidates {
            if let Some(rule) = self.rules.get(usize::from(index))
                && rule.when.holds(seen, &body)
            {
                return Classification {
                    class: rule.class,
                    scope: rule.scope,
                    wait: rule.wait.hint(seen, &body, now).plus(rule.skew),
                    skew: rule.skew,
                    rule: Some(index),
                    named: !rule.fallback || rule.class == Class::Success,
                    unprocessed: rule.unprocessed,
                    blameless: false,
                };
            }
        }
        unruled(seen.result)
    }

    /// Whether the body can matter for this result: a look-up, unless rules differ by method.
    #[must_use]
    pub fn needs_body(&self, method: &str, result: Result<u16, ErrorKind>) -> bool {
        let plan = self.plan(result);
        plan.needs_body
            && plan
                .candidates
                .iter()
                .filter_map(|&index| self.rules.get(usize::from(index)))
                .any(|rule| rule.when.allows(method) && looks_inside(rule))
    }

    fn plan(&self, result: Result<u16, ErrorKind>) -> &BodyPlan {
        static NOTHING: BodyPlan = BodyPlan { candidates: Vec::new(), needs_body: false };
        let place = match result {
            Ok(status) => usize::from(status).checked_sub(100).filter(|&place| place < STATUSES),
            Err(kind) => Some(STATUSES + kind as usize),
        };
        let plan = place.and_then(|place| self.table.get(place)).and_then(|&plan| self.plans.get(usize::from(plan)));
        plan.unwrap_or(&NOTHING)
    }
}

impl BodyPlan {
    /// Nothing after the first plain rule can ever match.
    fn of(rules: &[Rule], result: Result<u16, ErrorKind>) -> Self {
        let mut plan = Self::default();
        for (index, rule) in rules.iter().take(MAX_RULES).enumerate().filter(|(_, rule)| rule.when.is_about(result)) {
            plan.candidates.extend(u16::try_from(index));
            plan.needs_body |= looks_inside(rule);
            if rule.when.is_plain() {
                break;
            }
        }
        plan
    }
}

/// Whether a rule uses the body. A catch-all does, because unnamed failures are distinguished by their bodies.
fn looks_inside(rule: &Rule) -> bool {
    rule.when.needs_body() || rule.wait.needs_body() || (rule.fallback && rule.class != Class::Success) || rule.class == Class::Auth
}

fn unruled(result: Result<u16, ErrorKind>) -> Classification {
    match result {
        Ok(..400) => Classification::SUCCESS,
        Ok(400..500 | 600..) => Classification { class: Class::Permanent, named: false, ..Classification::SUCCESS },
        Ok(500..600) | Err(_) => Classification { class: Class::Transient, wait: Hint::Backoff, named: false, ..Classification::SUCCESS },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::HeaderLookup;
    use crate::classify::presets::Preset;
    use crate::classify::rules::RuleSource;

    const NOW: Wall = Wall(1_700_000_000_000);

    fn set(text: &str) -> RuleSet {
        let document = toml::de::DeTable::parse(text).unwrap();
        let mut rules = crate::classify::parse::rules(&document.get_ref()["classify"], RuleSource::Upstream).unwrap();
        rules.extend(Preset::named("generic").unwrap().rules().unwrap());
        RuleSet::new(rules)
    }

    fn generic() -> RuleSet {
        RuleSet::new(Preset::named("generic").unwrap().rules().unwrap())
    }

    fn verdict(set: &RuleSet, result: Result<u16, ErrorKind>, headers: &dyn HeaderLookup, body: &str) -> Classification {
        let seen = ObservedResult { method: "GET", result, headers, body: body.as_bytes(), latency: Nanos::from_secs(1) };
        set.classify(&seen, NOW)
    }

    #[test]
    fn the_well_known_statuses_are_named() {
        let set = generic();
        let table = [
            (Class::Success, true, vec![100, 200, 204, 206, 301, 304]),
            (Class::Transient, true, vec![408, 425, 429, 500, 502, 503, 504, 520, 524, 529]),
            (Class::Permanent, true, vec![400, 403, 404, 410, 413, 422, 451, 501, 505]),
            (Class::Ambiguous, true, vec![409, 423]),
            (Class::Quota, true, vec![402]),
            (Class::Auth, true, vec![401]),
            (Class::Permanent, false, vec![418, 444, 499, 600, 999]),
            (Class::Transient, false, vec![506, 507, 511, 525, 530, 599]),
        ];
        for (class, named, statuses) in table {
            for status in statuses {
                let verdict = verdict(&set, Ok(status), &(), "");
                assert_eq!((verdict.class, verdict.named), (class, named), "{status}");
                assert_eq!(verdict.unprocessed, status == 425, "{status}");
            }
        }
    }

    #[test]
    fn every_error_is_named() {
        let set = generic();
        for &kind in ErrorKind::ALL {
            let verdict = verdict(&set, Err(kind), &(), "");
            let permanent = matches!(kind, ErrorKind::Malformed | ErrorKind::Schema);
            assert_eq!(verdict.class, if permanent { Class::Permanent } else { Class::Transient }, "{kind}");
            assert!(verdict.named);
        }
    }

    #[test]
    fn a_firewalls_page_never_rejects_a_credential() {
        let set = generic();
        for status in [401, 403] {
            let firewall = [("Content-Type", "Text/HTML; charset=utf-8"), ("Server", "cloudflare")];
            assert_eq!(verdict(&set, Ok(status), &firewall, "<html>").class, Class::Ambiguous);
            assert_ne!(verdict(&set, Ok(status), &[("Content-Type", "text/html")], "<html>").class, Class::Ambiguous);
        }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let set = set(r#"
            classify = [
                { name = "a", when = { status = 403, json = { "/r" = ["quota*"] } }, as = "quota" },
                { name = "b", when = { status = "4xx", header = { "x-left" = ["0"] } }, as = "transient", wait = "5s", skew = "1s" },
                { name = "c", when = { status = 200, json = { "/data" = [], "/errors/*" = ["*"] } }, as = "permanent" },
                { name = "d", when = { slower = "1s", status = 201 }, as = "ambiguous" },
            ]
            "#);
        let name = |verdict: Classification| verdict.rule.map(|at| set.rules()[usize::from(at)].name.clone());
        let both = verdict(&set, Ok(403), &[("X-Left", "0")], r#"{"r":"quotaExceeded"}"#);
        assert_eq!(name(both).as_deref(), Some("a"));
        let header = verdict(&set, Ok(403), &[("X-Left", "0")], "{}");
        assert_eq!((name(header).as_deref(), header.wait), (Some("b"), Hint::After(Nanos::from_secs(6))));
        assert_eq!(name(verdict(&set, Ok(403), &(), "{}")).as_deref(), Some("refused"));
        for (body, rule) in [
            (r#"{"errors":[{}]}"#, Some("c")),
            (r#"{"data":null,"errors":[1]}"#, Some("c")),
            (r#"{"data":{},"errors":[1]}"#, None),
            ("x", None),
        ] {
            assert_eq!(name(verdict(&set, Ok(200), &(), body)).as_deref(), rule, "{body}");
        }
        assert_eq!(name(verdict(&set, Ok(201), &(), "")).as_deref(), Some("d"));
    }

    #[test]
    fn the_body_is_asked_for_only_where_it_can_matter() {
        let set = set(r#"
            classify = [
                { when = { status = 403, json = { "/r" = ["q"] } }, as = "quota" },
                { when = { status = 429 }, as = "transient", wait = { json = "/retry_after", unit = "s" } },
                { when = { status = 200, method = "POST", body = "x" }, as = "ambiguous" },
                { when = { status = 500 }, as = "transient" },
                { when = { status = 500, body = "never reached" }, as = "permanent" },
            ]
            "#);
        for (method, status, needed) in
            [("GET", 403, true), ("GET", 429, true), ("GET", 200, false), ("POST", 200, true), ("GET", 500, false), ("GET", 404, false)]
        {
            assert_eq!(set.needs_body(method, Ok(status)), needed, "{method} {status}");
        }
        assert!(!set.needs_body("GET", Err(ErrorKind::Timeout)));
        assert!(set.needs_body("GET", Ok(418)), "an unnamed error is told apart by its body");
    }

    #[test]
    fn without_rules_a_result_is_treated_as_its_kind_usually_is() {
        let set = RuleSet::new(Vec::new());
        for (status, class) in
            [(200, Class::Success), (304, Class::Success), (404, Class::Permanent), (503, Class::Transient), (7, Class::Success)]
        {
            assert_eq!(verdict(&set, Ok(status), &(), "").class, class, "{status}");
        }
        assert!(!verdict(&set, Ok(404), &(), "").named);
    }
}
