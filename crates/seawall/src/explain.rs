//! The `explain` door: a dry run of the pipeline for one hypothetical result. The call machine itself decides; this module only feeds it
//! and reports its decisions.

use crate::args::{ConfigArg, header};
use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::{BOLD, DIM, Terminal};
use seawall_core::call::{Action, Call, CallPlan, CallRequest, EndpointCells, Outcome};
use seawall_core::classify::{self, Classification, ObservedResult};
use seawall_core::config::url::Base;
use seawall_core::config::{Config, EndpointConfig, UpstreamConfig};
use seawall_core::lease::RequestMark;
use seawall_core::record::{AttemptOutcome, Class, Decision, ErrorKind, Reason};
use seawall_core::rng::Rng;
use seawall_core::time::{Nanos, Now};
use seawall_engine::clock::Clock;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seawall explain GET /youtube/search --status 503 --header 'Retry-After: 30'\n  seawall explain GET https://www.googleapis.com/youtube/v3/search --status 403 --body quota.json\n  seawall explain POST /payments/charge --error timeout"
)]
pub(crate) struct Args {
    /// HTTP method
    method: String,

    /// /UPSTREAM/PATH as the gateway takes it, or the upstream's own URL
    url: String,

    /// Status that the upstream answers with
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(100..=999), conflicts_with = "error")]
    status: Option<u16>,

    /// Failure without an answer: timeout, dns, connect, reset, tls, malformed, schema
    #[arg(long, value_name = "KIND", value_parser = |text: &str| ErrorKind::from_word(text).ok_or_else(|| format!("one of {}", ErrorKind::WORDS.join(", "))))]
    error: Option<ErrorKind>,

    /// Header of the answer, as 'NAME: VALUE'; may be repeated
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,

    /// File with the answer's body
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,

    /// The request carries an Idempotency-Key
    #[arg(long)]
    keyed: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    file: ConfigArg,
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (file, config) = setup::load(args.file.path.as_deref())?;
    terminal.detail(&format!("read {}", file.display()));
    let method = args.method.to_ascii_uppercase();
    let (upstream, path) = find(&config, &args.url)?;
    let endpoint = upstream.endpoint(&method, &path);
    let body = args.body.as_deref().map(setup::body).transpose()?.unwrap_or_default();
    let result = args.error.map_or_else(|| Ok(args.status.unwrap_or(200)), Err);
    let seen = ObservedResult { method: &method, result, headers: &args.headers.as_slice(), body: &body, latency: Nanos::from_millis(50) };
    let now = Clock::start().now();
    let at_cost = endpoint.policy.at_cost.allows(path.split('?').next().unwrap_or(""), || None);
    let dry = dry_run(&config, upstream, endpoint, &seen, (args.keyed, at_cost), now);
    let story = Explanation { upstream, endpoint, dry, body: &body, seen: &seen };
    let mut out = terminal.out();
    if args.json { story.write_json(&mut out) } else { story.write_text(&mut out) }?;
    Ok(Exit::Done)
}

/// The upstream of a gateway path or an absolute URL, and the path below its base.
fn find<'c>(config: &'c Config, url: &str) -> anyhow::Result<(&'c Arc<UpstreamConfig>, String)> {
    if let Ok(base) = Base::parse_callback(url) {
        let own = config.upstreams.iter().filter(|upstream| upstream.url.same_origin(&base));
        let found = own
            .filter_map(|upstream| Some((upstream, below(&base.path, &upstream.url.path)?)))
            .max_by_key(|(upstream, _)| upstream.url.path.len());
        if let Some(found) = found {
            return Ok(found);
        }
        if let Some(upstream) = config
            .upstreams
            .iter()
            .find(|upstream| upstream.hosts.iter().any(|host| *host == base.host || *host == format!("{}:{}", base.host, base.port)))
        {
            return Ok((upstream, below(&base.path, "").unwrap_or_else(|| "/".to_owned())));
        }
        return find_by_path(config, &base.path, url);
    }
    find_by_path(config, url, url)
}

fn find_by_path<'c>(config: &'c Config, path: &str, asked: &str) -> anyhow::Result<(&'c Arc<UpstreamConfig>, String)> {
    let path = path.split(['?', '#']).next().unwrap_or(path).trim_start_matches('/');
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    if let Some(upstream) = config.upstream(name) {
        return Ok((upstream, format!("/{rest}")));
    }
    if let Some(upstream) = config.server.default_upstream.as_deref().and_then(|name| config.upstream(name)) {
        return Ok((upstream, format!("/{path}")));
    }
    let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
    Err(CommandError { exit: Exit::Failed, message: format!("no upstream takes `{asked}`"), hint: None }
        .hint(format!("write /UPSTREAM/PATH with one of {}, or a URL below one of their base URLs", names.join(", ")))
        .into())
}

/// The rest of `path` below `base`; `None` if it is not below it.
fn below(path: &str, base: &str) -> Option<String> {
    let rest = path.strip_prefix(base)?;
    match rest {
        "" => Some("/".to_owned()),
        rest if rest.starts_with('/') => Some(rest.to_owned()),
        _ => None,
    }
}

/// The machine's decision, and the longest time that it could make the caller wait.
struct DryRun {
    verdict: Classification,
    attempt: AttemptOutcome,
    outcome: Option<Outcome>,
    wait: (Nanos, Nanos),
}

/// Drives a call through fresh state to its first result, because the question is not whether it would be admitted. Draws enough waits to
/// show their range.
fn dry_run(
    config: &Config,
    upstream: &UpstreamConfig,
    endpoint: &EndpointConfig,
    seen: &ObservedResult<'_>,
    repeats: (bool, bool),
    now: Now,
) -> DryRun {
    let plan = Arc::new(CallPlan { limited: false, queue_timeout: None, ..CallPlan::new(config, upstream, endpoint) });
    let verdict = plan.rules.classify(seen, now.wall);
    let (mut attempt, mut outcome) = once(config, upstream, endpoint, &plan, seen, repeats, now, 0);
    let mut wait = (attempt.wait, attempt.wait);
    let mut hinted = attempt.reason == Reason::ServerHint;
    for seed in 1..200 {
        let again;
        (again, outcome) = once(config, upstream, endpoint, &plan, seen, repeats, now, seed);
        wait = (wait.0.min(again.wait), wait.1.max(again.wait));
        hinted |= again.reason == Reason::ServerHint;
        attempt = again;
    }
    if attempt.decision == Decision::Retry && wait.1 > Nanos::ZERO {
        // The exact bounds of the backoff; a server's hint, which is the shortest wait drawn, is a lower bound of its own.
        let (least, most) = endpoint.policy.retry.backoff.range(0, Nanos::ZERO);
        let least = if hinted { wait.0 } else { least };
        wait = (least, most.max(least));
    }
    DryRun { verdict, attempt, outcome, wait }
}

#[expect(clippy::too_many_arguments, reason = "one imagined call, spelt out")]
fn once(
    config: &Config,
    upstream: &UpstreamConfig,
    endpoint: &EndpointConfig,
    plan: &Arc<CallPlan>,
    seen: &ObservedResult<'_>,
    (keyed, at_cost): (bool, bool),
    now: Now,
    seed: u64,
) -> (AttemptOutcome, Option<Outcome>) {
    let mut cells = EndpointCells::new(config, upstream, &endpoint.policy);
    let mut rng = Rng::seeded(seed);
    let request =
        CallRequest { method: seen.method, mark: RequestMark::NONE, keyed, at_cost, replayable: true, deadline: None, patient: false };
    let (mut call, mut action) = Call::begin(Arc::clone(plan), &request, now);
    loop {
        action = match action {
            Action::Ask(ask) => call.answered(cells.answer(ask, now).answer, now),
            Action::Send { .. } => call.responded(seen, now, &mut rng),
            Action::Wait { .. } | Action::Refresh => break,
            Action::Finish(_) => break,
        };
        // A rotated key is sent at once, but the question is about the first decision.
        if call.progress().attempts == 1
            && matches!(action, Action::Ask(seawall_core::call::Ask::Permit { .. } | seawall_core::call::Ask::Key { .. }))
        {
            break;
        }
    }
    let outcome = if let Action::Finish(finish) = action { Some(finish.outcome) } else { None };
    (call.take_record().expect("a result has been decided about"), outcome)
}

struct Explanation<'a> {
    upstream: &'a UpstreamConfig,
    endpoint: &'a EndpointConfig,
    dry: DryRun,
    body: &'a [u8],
    seen: &'a ObservedResult<'a>,
}

impl Explanation<'_> {
    fn rule(&self) -> (String, String) {
        let rule = self.dry.verdict.rule.and_then(|index| self.endpoint.policy.rules.rules().get(usize::from(index)));
        rule.map_or_else(|| ("none".to_owned(), String::new()), |rule| (rule.name.clone(), rule.source.as_str().to_owned()))
    }

    fn scope(&self) -> &'static str {
        self.dry.verdict.scope.as_str()
    }

    fn wait(&self) -> String {
        let (least, most) = self.dry.wait;
        match self.dry.attempt.decision {
            Decision::Retry if least == most => least.to_string(),
            Decision::Retry => format!("{least} to {most}"),
            Decision::RotateKey | Decision::RefreshToken => "none, at once".to_owned(),
            Decision::Return | Decision::Defer | Decision::Reject => "–".to_owned(),
        }
    }

    /// The caller's result if nothing changes, in a phrase.
    fn caller_gets(&self) -> String {
        match self.dry.outcome {
            None => "whatever the next attempt brings".to_owned(),
            Some(Outcome::Success) => "the upstream's answer".to_owned(),
            Some(Outcome::Failed(class)) => format!("the upstream's own answer ({class})"),
            Some(Outcome::Refused(code)) => format!("{} with code {code}", self.endpoint.policy.error_shape.described()),
            Some(Outcome::Replayed) => "the stored answer of an earlier call".to_owned(),
        }
    }

    fn diagnostic(&self) -> String {
        let content_type = self.seen.headers.first("content-type").map(|value| String::from_utf8_lossy(value).into_owned());
        classify::diagnostic(self.body, content_type.as_deref().unwrap_or(""))
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { upstream, endpoint, dry, .. } = self;
        let (rule, source) = self.rule();
        let row = |out: &mut dyn Write, stage: &str, text: String| writeln!(out, "{DIM}{stage:<10}{DIM:#} {text}");
        row(out, "endpoint", format!("{BOLD}{}/{}{BOLD:#} ({})", upstream.name, endpoint.name, endpoint.matches))?;
        row(out, "result", dry.attempt.status.to_string())?;
        row(out, "rule", if source.is_empty() { rule } else { format!("{rule} ({source})") })?;
        let unnamed = if dry.verdict.named { "" } else { ", unnamed: kept for review" };
        row(out, "class", format!("{BOLD}{}{BOLD:#}, scope {}{unnamed}", dry.verdict.class, self.scope()))?;
        row(out, "decision", format!("{BOLD}{}{BOLD:#} ({})", dry.attempt.decision, dry.attempt.reason))?;
        row(out, "wait", self.wait())?;
        row(out, "caller", self.caller_gets())?;
        if dry.verdict.class != Class::Success && !self.body.is_empty() {
            row(out, "says", self.diagnostic())?;
        }
        Ok(())
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { upstream, endpoint, dry, .. } = self;
        let (rule, source) = self.rule();
        let document = json!({
            "upstream": upstream.name,
            "endpoint": endpoint.name,
            "status": dry.attempt.status.to_string(),
            "rule": rule,
            "rule_source": source,
            "named": dry.verdict.named,
            "class": dry.verdict.class.as_str(),
            "scope": self.scope(),
            "decision": dry.attempt.decision.as_str(),
            "reason": dry.attempt.reason.as_str(),
            "wait_ms": { "min": dry.wait.0.as_millis_f64(), "max": dry.wait.1.as_millis_f64() },
            "caller_gets": self.caller_gets(),
            "detail": self.diagnostic(),
        });
        serde_json::to_writer_pretty(&mut *out, &document).map_err(io::Error::from)?;
        writeln!(out)
    }
}
