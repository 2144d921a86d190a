//! Rules in users' spelling, and the messages for their mistakes.

use super::*;
use crate::classify::{Unit, Wait};

fn read(text: &str) -> Result<Rule, Vec<(String, String)>> {
    let table = DeTable::parse(text).unwrap();
    let told = |problems: Problems| problems.0.into_iter().map(|(span, message)| (text[span].to_owned(), message)).collect();
    rule(table.get_ref(), 0..0, RuleSource::Upstream).map_err(told)
}

/// The problems of `text`, as `place: message` lines.
fn complaints(text: &str) -> Vec<String> {
    read(text).unwrap_err().into_iter().map(|(place, message)| format!("{place}: {message}")).collect()
}

#[test]
fn the_rule_of_the_manual_is_read() {
    let rule = read(
        r#"
        when = { status = [403], json = { "/error/errors/0/reason" = ["quotaExceeded", "dailyLimitExceeded"] } }
        as = "quota"
        scope = "group"
        wait = "until-reset"
        "#,
    )
    .unwrap();
    assert_eq!((rule.class, rule.scope, rule.wait), (Class::Quota, Scope::Group, Wait::UntilReset));
    assert!(rule.when.status.contains(403) && !rule.when.status.contains(404));
    assert_eq!(rule.when.json[0].1.len(), 2);
    assert_eq!(rule.name, "403");
}

#[test]
fn every_condition_is_read() {
    let rule = read(
        r#"
        name = "all"
        when = { status = ["5xx", "400-404", 200], method = ["post"], header = { "X-RateLimit-Remaining" = [0] }, body = "(?i)slow", xml = { "/a/@b" = 29, "//c" = [] }, error = ["timeout", "dns"], slower = "2s" }
        as = "transient"
        skew = "1m"
        unprocessed = true
        fallback = true
        "#,
    )
    .unwrap();
    assert_eq!(rule.when.method, ["POST"]);
    assert_eq!(rule.when.header[0].0, "x-ratelimit-remaining");
    assert_eq!(rule.when.error, [ErrorKind::Timeout, ErrorKind::Dns]);
    assert_eq!((rule.when.slower, rule.skew), (Some(Nanos::from_secs(2)), Nanos::from_secs(60)));
    assert!(rule.unprocessed && rule.fallback && rule.when.xml.iter().any(|(_, patterns)| patterns.is_empty()));
}

#[test]
fn every_wait_is_read() {
    let wait = |text: &str| read(&format!("when = {{ status = 429 }}\nas = \"transient\"\nwait = {text}")).unwrap().wait;
    assert_eq!(wait(r#""1m30s""#), Wait::Fixed(Nanos::from_secs(90)));
    assert_eq!(wait(r#"{ header = "X-Reset", unit = "epoch-s" }"#), Wait::Header { name: "x-reset".into(), unit: Unit::EpochSeconds });
    assert!(matches!(wait(r#"{ json = "/retry_after", unit = "s" }"#), Wait::Json { .. }));
    assert!(matches!(wait(r#"{ body = "in ([0-9]+)", unit = "ms" }"#), Wait::Body { .. }));
    assert!(matches!(wait(r#"{ need = "/a", have = "/b", per_second = "/c" }"#), Wait::Deficit { .. }));
    let nested = wait(r#"["retry-after", { longest = [{ header = "a", unit = "s" }, "5s"] }, "until-month"]"#);
    assert!(matches!(nested, Wait::First(waits) if waits.len() == 3));
}

#[test]
fn what_is_left_out_follows_from_the_class() {
    let usual = |class: &str| {
        let rule = read(&format!("when = {{ status = 400 }}\nas = \"{class}\"")).unwrap();
        (rule.scope, rule.wait)
    };
    assert_eq!(usual("quota"), (Scope::Key, Wait::UntilReset));
    assert_eq!(usual("auth"), (Scope::Key, Wait::None));
    assert_eq!(usual("transient"), (Scope::Call, Wait::Backoff));
    assert_eq!(usual("permanent"), (Scope::Call, Wait::None));
}

#[test]
fn every_problem_is_told_with_its_place() {
    let said = complaints(
        r#"
        wehn = 1
        when = { status = [99, "6yy"], methd = "GET", json = { "error" = ["x"] }, body = "(", error = ["dsn"], slower = 5 }
        as = "permanet"
        scope = 5
        wait = 60
        unprocessed = "yes"
        "#,
    );
    assert_eq!(
        said,
        [
            "wehn: unknown key `wehn`; did you mean `when`?",
            "\"permanet\": \"permanet\" is not a class; did you mean \"permanent\"?",
            "methd: unknown key `methd`; did you mean `method`?",
            "\"(\": not a regular expression: unclosed group",
            "\"dsn\": \"dsn\" is not an error; did you mean \"dns\"?",
            "\"error\": \"error\" is not a JSON pointer: it starts with `/`, as in \"/error/code\"",
            "5: a length of time, as in \"60s\" is a string, not an integer",
            "99: \"99\" is not a status: write 503, \"5xx\" or \"500-599\"",
            "\"6yy\": \"6yy\" is not a status: write 503, \"5xx\" or \"500-599\"",
            "5: a scope is a string, not an integer",
            "60: a length of time has a unit: write \"60s\"",
            "\"yes\": this is true or false, not a string",
        ]
    );
}

#[test]
fn what_is_missing_is_told() {
    let said = complaints("name = \"x\"");
    assert!(said[0].contains("`as` is missing") && said[1].contains("`when` is missing"), "{said:?}");
    assert!(complaints("when = {}\nas = \"auth\"")[0].contains("`when` is empty"));
    assert!(complaints("when = { status = [] }\nas = \"auth\"")[0].contains("matches nothing"));
}

#[test]
fn wrong_waits_are_told() {
    let said = |wait: &str| complaints(&format!("when = {{ status = 429 }}\nas = \"transient\"\nwait = {wait}")).join("\n");
    assert!(said("\"retry_after\"").contains("did you mean \"retry-after\"?"));
    assert!(said("{ header = \"a\" }").contains("`unit` is missing"));
    assert!(said("{ header = \"a\", unit = \"sec\" }").contains("is not a unit"));
    assert!(said("{ body = \"x\", unit = \"s\" }").contains("exactly one group"));
    assert!(said("{ longest = [\"backoff\"] }").contains("compares lengths"));
    assert!(said("[]").contains("1 to 8 entries"));
    assert!(said("[[[[\"none\"]]]]").contains("nested too deeply"));
    assert!(said("{ header = \"a\", json = \"/a\", unit = \"s\" }").contains("a wait's table is"));
}
