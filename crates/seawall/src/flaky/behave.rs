//! Decides the fate of one request. Pure: time is an argument, and every choice follows from the seed.
//!
//! The fate of the n-th request to a route depends only on seed, route and n, whatever other routes have received. The order of two
//! simultaneous requests is up to the machine; the fates of the first n requests together are not.

use super::capacity::{Due, ServerCapacity};
use super::entry::{Fault, Latency, RetryAfter, TimelineEntry, What};
use super::fate::{PlannedAnswer, PlannedBody, RequestFacts, RequestFate, ServiceTime};
use super::script::{CountedBy, Face, Quota, Route, Script, ScriptBody as Says};
use super::stats::{Bounded, Stats};
use seawall_core::rng::Rng;
use seawall_core::time::{Mono, Nanos, Now};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct FlakyUpstream {
    script: Script,
    seed: u64,
    /// The start of the timeline.
    origin: Mono,
    pub stats: Stats,
    crews: Vec<ServerCapacity>,
    /// The number of responses of each sequence.
    sequences: Bounded<usize>,
    /// Period and count of each limited caller.
    rates: Bounded<(u64, u64)>,
    /// The expiry of each token.
    tokens: Bounded<Mono>,
}

impl FlakyUpstream {
    pub(crate) fn new(script: Script, seed: u64) -> Self {
        let crews = script.routes.iter().map(|_| ServerCapacity::default()).collect();
        let stats = Stats::of(script.routes.len());
        Self {
            script,
            seed,
            origin: Mono(0),
            stats,
            crews,
            sequences: Bounded::default(),
            rates: Bounded::default(),
            tokens: Bounded::default(),
        }
    }

    /// Restores the initial state, timeline included.
    pub(crate) fn reset(&mut self, now: Mono) {
        *self = Self { origin: now, ..Self::new(std::mem::take(&mut self.script), self.seed) };
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.script.routes.iter().map(|route| route.name.as_str()).collect()
    }

    pub(crate) fn decide(&mut self, request: &RequestFacts<'_>, now: Now) -> RequestFate {
        self.stats.requests += 1;
        if let Some(key) = request.header("idempotency-key") {
            *self.stats.idempotency.entry(key.trim_matches('"')) += 1;
        }
        let fate = self.choose(request, now);
        match fate.fault {
            Some(fault) => self.stats.fault(fault),
            None => self.stats.status(fate.answer.status),
        }
        fate
    }

    fn choose(&mut self, request: &RequestFacts<'_>, now: Now) -> RequestFate {
        if let Some(list) = request.header("x-flaky") {
            let id = request.header("x-flaky-id").map_or_else(|| format!("{} {} {list}", request.method, request.path), str::to_owned);
            return self.sequence(&id, list, now);
        }
        if let Some(issuer) = self.script.issuers.iter().position(|issuer| issuer.path == request.path) {
            return self.issue(issuer, request, now).into();
        }
        match self.script.routes.iter().position(|route| route.matches.takes(request.method, request.path)) {
            Some(route) => self.route(route, request, now),
            None => self.built_in(request, now),
        }
    }

    fn route(&mut self, index: usize, request: &RequestFacts<'_>, now: Now) -> RequestFate {
        self.stats.routes[index] += 1;
        let n = self.stats.routes[index];
        let mut rng = Rng::seeded(mixed(self.seed, index as u64 + 1, n));
        if let Some(refusal) = self.refusal(index, request, now) {
            return refusal.into();
        }
        let route = &self.script.routes[index];
        let since = Mono(now.mono.since(self.origin).0);
        let face = self.script.face(index, since);
        let work = match route.capacity {
            Some(capacity) => {
                let workers = self.script.workers(index, since);
                let service = capacity.service.draw(&mut rng);
                match self.crews[index].offer(workers, capacity.queue, service, now.mono) {
                    Some(ticket) => Some(ServiceTime { route: index, ticket }),
                    None => {
                        return finish(route, &face, &TimelineEntry::status(503), PlannedAnswer::new(503, PlannedBody::Bad), now).into();
                    }
                }
            }
            None => None,
        };
        let picked = face.mix.map(|mix| mix.pick(&mut rng));
        let good = TimelineEntry::status(200);
        let entry = picked.unwrap_or(&good);
        let wait = entry.latency.unwrap_or_else(|| face.wait(&mut rng));
        if let What::Error(error) = &entry.what {
            self.stats.error(&error.name);
        }
        let (fault, answer) = answer(entry, route.says(n), now);
        let answer = finish(route, &face, entry, answer, now);
        RequestFate { work, wait, fault, answer }
    }

    /// Checks tokens, rates and quotas, which come before everything else.
    fn refusal(&mut self, index: usize, request: &RequestFacts<'_>, now: Now) -> Option<PlannedAnswer> {
        let route = &self.script.routes[index];
        if route.token.is_some() {
            let good = request.bearer().and_then(|token| self.tokens.peek(token)).is_some_and(|expires| now.mono < *expires);
            if !good {
                self.stats.unauthorized += 1;
                let mut answer = PlannedAnswer::json(401, r#"{"error":"invalid_token"}"#.to_owned());
                answer.extra.push_str("www-authenticate: Bearer error=\"invalid_token\"\r\n");
                return Some(answer);
            }
        }
        if let Some((rate, by)) = route.rate {
            let name = if by == CountedBy::Ip { format!("{index} {}", request.ip) } else { index.to_string() };
            let counted = self.rates.entry(&name);
            let (period, left) = period(rate.per, now.mono);
            *counted = if counted.0 == period { (period, counted.1 + 1) } else { (period, 1) };
            if counted.1 > rate.count {
                let hint = RetryAfter::Number(left.as_secs_ceil().max(1).to_string());
                let mut answer = PlannedAnswer::new(429, PlannedBody::Bad);
                route.face.retry_after.as_ref().unwrap_or(&hint).write(now.wall, &mut answer.extra);
                return Some(answer);
            }
        }
        let quota = route.quota.as_ref()?;
        over(&mut self.stats, quota, request, now)
    }

    /// Whether work is done, or when to ask again.
    pub(crate) fn due(&mut self, work: ServiceTime, now: Mono) -> Due {
        let since = Mono(now.since(self.origin).0);
        let workers = self.script.workers(work.route, since);
        let dips = self.script.timeline.iter().filter(|moment| moment.workers.is_some());
        let edge = dips.map(|moment| moment.edge(since)).min().unwrap_or(Mono::MAX);
        self.crews[work.route].due(workers, work.ticket, now, self.origin + Nanos(edge.0))
    }

    fn issue(&mut self, issuer: usize, request: &RequestFacts<'_>, now: Now) -> PlannedAnswer {
        self.stats.token_requests += 1;
        let issuer = &self.script.issuers[issuer];
        let form = std::str::from_utf8(request.body).unwrap_or_default();
        let grant = form.split('&').find_map(|pair| pair.strip_prefix("grant_type="));
        if request.method != "POST" {
            return PlannedAnswer::new(405, PlannedBody::Bad);
        }
        if grant != Some(issuer.grant) {
            return PlannedAnswer::json(400, r#"{"error":"unsupported_grant_type"}"#.to_owned());
        }
        let token = format!("flaky-{:016x}", mixed(self.seed, u64::MAX, self.stats.token_requests));
        *self.tokens.entry(&token) = now.mono + issuer.expires;
        let refresh = if issuer.grant == "refresh_token" { r#","refresh_token":"flaky-refresh""# } else { "" };
        let seconds = issuer.expires.as_secs_ceil();
        PlannedAnswer::json(200, format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{seconds}{refresh}}}"#))
    }

    /// The n-th request with an id gets the n-th entry; the last repeats.
    fn sequence(&mut self, id: &str, list: &str, now: Now) -> RequestFate {
        let entries = match TimelineEntry::list(list) {
            Ok(entries) => entries,
            Err(why) => return PlannedAnswer::json(400, serde_json::json!({ "error": why }).to_string()).into(),
        };
        let count = self.sequences.entry(id);
        *count += 1;
        let n = *count;
        match entries.get(n - 1).or(entries.last()) {
            Some(entry) => self.plain(entry, n as u64, now),
            None => PlannedAnswer::new(400, PlannedBody::Bad).into(),
        }
    }

    /// The fate of an entry outside any route.
    fn plain(&mut self, entry: &TimelineEntry, n: u64, now: Now) -> RequestFate {
        if let What::Error(error) = &entry.what {
            self.stats.error(&error.name);
        }
        let (fault, mut answer) = answer(entry, PlannedBody::Good(n), now);
        if let Some(hint) = &entry.retry_after {
            hint.write(now.wall, &mut answer.extra);
        }
        RequestFate { work: None, wait: entry.latency.unwrap_or(Nanos::ZERO), fault, answer }
    }

    /// The paths that work without a script.
    fn built_in(&mut self, request: &RequestFacts<'_>, now: Now) -> RequestFate {
        let bad = |why: String| PlannedAnswer::json(400, serde_json::json!({ "error": why }).to_string()).into();
        let mut parts = request.path.trim_start_matches('/').splitn(3, '/');
        match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
            ("seq", Some(id), Some(list)) => self.sequence(&format!("seq {id}"), list, now),
            ("status", Some(text), None) => match TimelineEntry::parse(text) {
                Ok(entry) => self.plain(&entry, self.stats.requests, now),
                Err(why) => bad(why),
            },
            ("delay", Some(text), None) => match seawall_core::units::duration(text) {
                Ok(wait) => RequestFate { wait, ..PlannedAnswer::new(200, PlannedBody::Good(self.stats.requests)).into() },
                Err(why) => bad(why),
            },
            ("bytes", Some(text), None) => match text.parse::<u64>() {
                Ok(length) => PlannedAnswer::new(200, PlannedBody::Fill(length.min(1 << 30))).into(),
                Err(_) => bad("write a number of bytes, as in /bytes/65536".to_owned()),
            },
            ("echo", _, _) => PlannedAnswer::new(200, PlannedBody::Echo).into(),
            ("sse", count, None) => {
                PlannedAnswer::new(200, PlannedBody::Events(count.and_then(|count| count.parse().ok()).unwrap_or(10))).into()
            }
            _ => PlannedAnswer::new(200, PlannedBody::Good(self.stats.requests)).into(),
        }
    }
}

impl Script {
    /// The route's own behaviour with the timeline's changes; later moments win.
    fn face(&self, index: usize, since: Mono) -> RouteBehavior<'_> {
        let mut shown = RouteBehavior::default();
        shown.lay(&self.routes[index].face);
        for moment in self.timeline.iter().filter(|moment| moment.covers(index, since)) {
            shown.lay(&moment.face);
        }
        shown
    }

    fn workers(&self, index: usize, since: Mono) -> u32 {
        let own = self.routes[index].capacity.map_or(1, |capacity| capacity.workers);
        let moments = self.timeline.iter().filter(|moment| moment.covers(index, since));
        moments.filter_map(|moment| moment.workers).next_back().unwrap_or(own)
    }
}

/// The behaviour of a route at one moment.
#[derive(Default)]
struct RouteBehavior<'a> {
    mix: Option<&'a super::entry::Mix>,
    latency: Option<Latency>,
    slow: Option<(seawall_core::policy::Share, Latency)>,
    retry_after: Option<&'a RetryAfter>,
}

impl<'a> RouteBehavior<'a> {
    fn lay(&mut self, over: &'a Face) {
        self.mix = over.mix.as_ref().or(self.mix);
        self.latency = over.latency.or(self.latency);
        self.slow = over.slow.or(self.slow);
        self.retry_after = over.retry_after.as_ref().or(self.retry_after);
    }

    fn wait(&self, rng: &mut Rng) -> Nanos {
        let usual = self.latency.unwrap_or(Latency::NONE);
        let slow = self.slow.filter(|(share, _)| rng.up_to(999_999) < u64::from(share.0));
        slow.map_or(usual, |(_, latency)| latency).draw(rng)
    }
}

impl Route {
    fn says(&self, n: u64) -> PlannedBody {
        match &self.body {
            Says::Default => PlannedBody::Good(n),
            Says::Text(text) => PlannedBody::Bytes(text.clone()),
            Says::Size(size) => PlannedBody::Fill(*size),
            Says::Echo => PlannedBody::Echo,
        }
    }
}

fn answer(entry: &TimelineEntry, good: PlannedBody, now: Now) -> (Option<Fault>, PlannedAnswer) {
    match &entry.what {
        What::Status(status @ 200..=299) => (None, PlannedAnswer::new(*status, good)),
        What::Status(status) => (None, PlannedAnswer::new(*status, PlannedBody::Bad)),
        What::Fault(fault) => (Some(*fault), PlannedAnswer::new(200, good)),
        What::Error(error) => (None, PlannedAnswer::error(error, now)),
    }
}

/// Adds to a response what its route sets for all of them.
fn finish(route: &Route, face: &RouteBehavior<'_>, entry: &TimelineEntry, mut answer: PlannedAnswer, now: Now) -> PlannedAnswer {
    let limited = matches!(answer.status, 429 | 503);
    if let Some(hint) = entry.retry_after.as_ref().or_else(|| face.retry_after.filter(|_| limited)) {
        hint.write(now.wall, &mut answer.extra);
    }
    if !matches!(answer.body, PlannedBody::Bad) && answer.content_type.is_none() {
        answer.content_type = route.content_type.as_deref().map(Arc::from);
    }
    answer.headers = (!route.headers.is_empty()).then(|| Arc::clone(&route.headers));
    answer
}

/// The number of the current period, and the rest of its length.
const fn period(per: Nanos, now: Mono) -> (u64, Nanos) {
    (now.0 / per.0, Nanos(per.0 - now.0 % per.0))
}

fn over(stats: &mut Stats, quota: &Quota, request: &RequestFacts<'_>, now: Now) -> Option<PlannedAnswer> {
    let (period, left) = period(quota.per, now.mono);
    let key = request.key(&quota.key).unwrap_or("none");
    let limit = quota.limits.get(key).copied().unwrap_or(quota.limit);
    let used = stats.keys.entry(key);
    if used.period != period {
        (used.period, used.used) = (period, 0);
    }
    used.total += 1;
    used.used += 1;
    if used.used <= limit {
        return None;
    }
    used.refused += 1;
    used.after_exhausted += u64::from(used.used > limit + 1);
    Some(if let Some(error) = &quota.error {
        stats.error(&error.name);
        PlannedAnswer::error(error, now)
    } else {
        let mut answer = PlannedAnswer::new(429, PlannedBody::Bad);
        RetryAfter::Number(left.as_secs_ceil().to_string()).write(now.wall, &mut answer.extra);
        answer
    })
}

/// Mixes three numbers into one seed (the finalizer of SplitMix64).
const fn mixed(seed: u64, stream: u64, n: u64) -> u64 {
    let mut x = seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
