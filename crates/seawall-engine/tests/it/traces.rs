//! Compares three drivers of one machine: for the same policy, seed and script, the library, the gateway's engine and the simulator send at
//! the same times, make the same decisions for the same reasons, and end alike.

use http::HeaderMap;
use proptest::prelude::*;
use proptest::sample::select;
use seawall_core::call::{CallEnd, CallRequest, Outcome};
use seawall_core::classify::HeaderLookup;
use seawall_core::config::{self, Config};
use seawall_core::id::CallId;
use seawall_core::lease::RequestMark;
use seawall_core::record::{Class, ErrorKind};
use seawall_core::rng::Rng;
use seawall_core::sim::script::{self, SendFate};
use seawall_core::time::{Mono, Nanos, Wall};
use seawall_engine::attempt::{AttemptRequest, KeyTail, Transport};
use seawall_engine::credential_pauses::CredentialMark;
use seawall_engine::deadlines::Deadlines;
use seawall_engine::driver::{CallContext, drive};
use seawall_engine::limits::LimitSubject;
use seawall_engine::record::{AttemptRecord, EndpointNames, log_line};
use seawall_engine::recorder::Recorder;
use seawall_engine::runtime::{Around, Live};
use seawall_engine::secret::Secret;
use seawall_engine::{Clock, Failure, Policies, Record};
use seawall_http::fault::Fault;
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The comparable results: times of sends, log lines of attempts, and ends of calls.
#[derive(Debug, Default, PartialEq)]
struct Story {
    sends: Vec<(Mono, u32)>,
    lines: Vec<String>,
    ends: Vec<String>,
}

#[derive(Debug)]
struct Case {
    text: String,
    gaps: Vec<Nanos>,
    fates: Vec<SendFate>,
    seed: u64,
}

impl Case {
    fn config(&self) -> Config {
        config::load("story.toml", self.text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"))
    }

    fn fate(&self, sent: &Cell<usize>) -> SendFate {
        let fate = self.fates[sent.get() % self.fates.len()];
        sent.set(sent.get() + 1);
        fate
    }
}

fn id() -> CallId {
    CallId::new(Wall(0), &mut Rng::seeded(0))
}

fn caller() -> Arc<str> {
    Arc::from("anonymous")
}

fn line(record: AttemptRecord) -> String {
    let mut text = Vec::new();
    log_line::json(&mut text, &mut log_line::Stamp::default(), &Record::Attempt(AttemptRecord { call: id(), ..record }));
    String::from_utf8(text).unwrap()
}

fn end(succeeded: bool, finish: &CallEnd) -> String {
    if succeeded { "success".into() } else { format!("{} after {} in {}", finish.reason, finish.attempts, finish.elapsed) }
}

fn simulator(case: &Case) -> Story {
    let trace = script::play(&case.config(), &case.gaps, &case.fates, case.seed, Clock::simulated().now());
    let names = Arc::new(EndpointNames::new("api", "default"));
    let record = |(now, attempt): &(seawall_core::time::Now, _)| {
        line(AttemptRecord {
            at: now.wall,
            call: id(),
            names: Arc::clone(&names),
            caller: caller(),
            attempt: *attempt,
            key_tail: None,
            request: None,
            resends: 0,
            span: None,
            sample: None,
            timeout: None,
            error: None,
        })
    };
    Story {
        sends: trace.sends,
        lines: trace.attempts.iter().map(record).collect(),
        ends: trace.finishes.iter().map(|finish| end(finish.outcome == Outcome::Success, finish)).collect(),
    }
}

/// With a hook, every call uses the machine; without one, calls that succeed at once use the fast path.
fn library(case: &Case, hooked: bool) -> Story {
    let clock = Clock::simulated();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let mut policy = Policies::from_toml(&case.text).unwrap().get("api").unwrap().with_clock(clock.clone()).with_seed(case.seed);
    if hooked {
        let lines = Arc::clone(&lines);
        policy = policy.on_record(move |record| {
            if let Record::Attempt(record) = record {
                lines.lock().unwrap().push(line(record.clone()));
            }
        });
    }
    let (sent, mut sends, mut ends) = (Cell::new(0), Vec::new(), Vec::new());
    clock.run(async {
        for gap in &case.gaps {
            clock.sleep(Duration::from_nanos(gap.0)).await;
            let request = policy.request().responses().errors(|error: &ErrorKind| *error);
            let answer = request
                .call(|attempt| {
                    sends.push((clock.now().mono, attempt.number()));
                    let fate = case.fate(&sent);
                    let clock = clock.clone();
                    async move {
                        clock.sleep(Duration::from_nanos(fate.latency.0)).await;
                        let mut answer = http::Response::builder().status(fate.result?);
                        if let Some(seconds) = fate.retry_after {
                            answer = answer.header("retry-after", seconds);
                        }
                        Ok(answer.body(()).unwrap())
                    }
                })
                .await;
            ends.push(match answer {
                Ok(answer) if answer.status().as_u16() < 400 => "success".to_owned(),
                Ok(answer) => format!("status {}", answer.status().as_u16()),
                Err(failure) => told(&failure),
            });
        }
    });
    let lines = lines.lock().unwrap().clone();
    Story { sends, lines, ends }
}

fn told(failure: &Failure<ErrorKind>) -> String {
    let elapsed = Nanos(u64::try_from(failure.elapsed().as_nanos()).unwrap());
    format!("{} after {} in {elapsed}", failure.reason(), failure.attempts())
}

/// An upstream with scripted results.
struct Scripted<'a> {
    case: &'a Case,
    clock: Clock,
    sent: &'a Cell<usize>,
    sends: Vec<(Mono, u32)>,
    last: Option<(u16, Fields)>,
}

#[derive(Debug)]
struct Fields(Option<String>);

impl HeaderLookup for Fields {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.0.as_deref().filter(|_| name == "retry-after").map(str::as_bytes)
    }
}

impl Transport for Scripted<'_> {
    async fn send(&mut self, attempt: AttemptRequest) -> Result<(), Fault> {
        self.sends.push((self.clock.now().mono, attempt.number));
        self.last = None;
        let fate = self.case.fate(self.sent);
        // tokio's timer does not follow simulated time, so the transport enforces the limit itself.
        self.clock.sleep(Duration::from_nanos(fate.latency.min(attempt.timeout).0)).await;
        if fate.latency > attempt.timeout {
            return Err(Fault::TIMEOUT);
        }
        let status = fate.result.map_err(|kind| Fault { kind, ..Fault::RESET })?;
        self.last = Some((status, Fields(fate.retry_after.map(|seconds| seconds.to_string()))));
        Ok(())
    }

    fn answer(&self) -> Option<(u16, &dyn HeaderLookup, &[u8])> {
        self.last.as_ref().map(|(status, fields)| (*status, fields as &dyn HeaderLookup, &[] as &[u8]))
    }

    async fn refresh(&mut self) -> bool {
        false
    }
}

#[derive(Debug)]
struct NoKeys;

impl KeyTail for NoKeys {
    fn tail(&self, _key: u16) -> Option<Arc<str>> {
        None
    }
}

/// A sink that can be read afterwards.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn gateway(case: &Case) -> Story {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _inside = runtime.enter();
    let clock = Clock::simulated();
    let around = Around { vault: &|_| Ok(Secret::new("-")), files: &|_| Err("no files".into()) };
    let live = Live::new(case.config(), around, None).unwrap();
    let (recorder, rng, headers, who) = (Recorder::default(), RefCell::new(Rng::seeded(case.seed)), HeaderMap::new(), caller());
    let deadlines = Deadlines::default();
    let scene = CallContext {
        clock: &clock,
        deadlines: &deadlines,
        rng: &rng,
        recorder: &recorder,
        endpoint: &live.upstreams[0].endpoints[0],
        id: id(),
        caller: &who,
        key_tail: &NoKeys,
        request: None,
        who: LimitSubject {
            ip: IpAddr::from([127, 0, 0, 1]),
            caller: "",
            user: "",
            tenant: "",
            headers: &headers,
            credential: "",
            mark: CredentialMark::default(),
        },
        trail: None,
        keeper: None,
        start_log: None,
        closing: None,
    };
    let sent = Cell::new(0);
    let mut transport = Scripted { case, clock: clock.clone(), sent: &sent, sends: Vec::new(), last: None };
    let mut ends = Vec::new();
    clock.run(async {
        for gap in &case.gaps {
            clock.sleep(Duration::from_nanos(gap.0)).await;
            let request = CallRequest {
                method: "GET",
                mark: RequestMark::NONE,
                keyed: false,
                at_cost: false,
                replayable: true,
                deadline: None,
                patient: false,
            };
            let ended = drive(&scene, &request, &mut transport).await;
            ends.push(end(ended.finish.outcome == Outcome::Success, &ended.finish));
        }
    });
    let sink = Sink::default();
    recorder.stop();
    recorder.write_to(Box::new(sink.clone()), true, |_| {});
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    let lines = text.lines().filter(|line| line.contains("\"event\":\"attempt\"")).map(|line| without_bound(line) + "\n").collect();
    Story { sends: transport.sends, lines, ends }
}

/// Removes the name of the exceeded timeout from a line: only drivers with a transport know it.
fn without_bound(line: &str) -> String {
    let mut line = line.to_owned();
    for bound in ["attempt", "total", "connect"] {
        line = line
            .replace(&format!("\"timeout\":\"{bound}\","), "")
            .replace(&format!("\"reason\":\"{bound} timeout\""), "\"reason\":\"timeout\"");
    }
    line
}

/// Reports the first difference instead of two long lists.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: &[T], theirs: &[T], case: &Case) {
    let differs = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs).unwrap_or(ours.len().min(theirs.len()));
    assert!(ours == theirs, "{what} {differs}:\n{:?}\n{:?}\n{}", ours.get(differs), theirs.get(differs), case.text);
}

fn check(case: &Case) {
    let (simulated, gateway, hooked, plain) = (simulator(case), gateway(case), library(case, true), library(case, false));
    same("the gateway's attempt", &gateway.lines, &simulated.lines, case);
    same("the gateway's send", &gateway.sends, &simulated.sends, case);
    same("the gateway's end", &gateway.ends, &simulated.ends, case);
    same("the library's attempt", &hooked.lines, &simulated.lines, case);
    same("the library's send", &hooked.sends, &simulated.sends, case);
    same("the short way's send", &plain.sends, &simulated.sends, case);
    assert_eq!(plain.ends, hooked.ends);
    for (ours, theirs) in hooked.ends.iter().zip(&simulated.ends) {
        // A failure with a response is returned as that response.
        assert!(ours == theirs || ours.starts_with("status "), "{ours} / {theirs}");
        assert_eq!(ours == "success", theirs == "success");
    }
}

const fn ok(status: u16) -> SendFate {
    SendFate { latency: Nanos::from_millis(20), result: Ok(status), retry_after: None }
}

#[test]
fn an_outage_is_told_alike_by_library_gateway_and_simulator() {
    let text = "[upstreams.api]\nurl = \"http://api.test\"\ntimeout = { attempt = \"10s\", total = \"30s\" }\n\
                breaker = { consecutive = 1, open = \"2s\", max_wait = \"0s\" }\n"
        .to_owned();
    let mut fates = vec![ok(200), ok(200)];
    fates.extend([SendFate { result: Err(ErrorKind::Reset), ..ok(0) }; 4]);
    fates.push(SendFate { retry_after: Some(3), ..ok(503) });
    fates.push(SendFate { latency: Nanos::from_secs(11), ..ok(200) });
    let case = Case { text, gaps: vec![Nanos::from_millis(700); 25], fates, seed: 7 };
    check(&case);
    let story = simulator(&case);
    assert!(story.lines.iter().any(|line| line.contains("circuit_open")), "{:#?}", story.lines);
    assert!(story.lines.iter().any(|line| line.contains("timeout")) && story.ends.contains(&"success".to_owned()));
}

fn cases() -> impl Strategy<Value = Case> {
    let status = select(vec![200u16, 200, 200, 204, 500, 502, 503, 429, 404, 401]);
    let result = prop_oneof![4 => status.prop_map(Ok), 1 => select(ErrorKind::ALL).prop_map(Err)];
    let fate = (result, 0..1_500u64, prop::option::weighted(0.2, 0..4u32)).prop_map(|(result, ms, retry_after)| SendFate {
        latency: Nanos::from_millis(ms),
        result,
        retry_after,
    });
    let knobs = (1..6u32, select(seawall_core::policy::BackoffKind::WORDS), 0..400u64, select(vec![0u32, 1, 10]), 0..=100u32);
    let guard = select(vec![
        "mode = \"off\"",
        "consecutive = 1",
        "consecutive = 3, ramp = \"5s\"",
        "min_calls = 2, slow = \"1s\"",
        "mode = \"shadow\"",
    ]);
    let extra = select(vec![
        "",
        "",
        "limits = [{ name = \"qps\", rate = \"2/s\", burst = 2 }]",
        "limits = [{ name = \"paced\", rate = \"3/s\", burst = 2, algorithm = \"leaky-bucket\" }]",
        "pool = \"p\"",
        "profile = \"pipeline\"",
    ]);
    let gaps = prop::collection::vec((0..3_000u64).prop_map(Nanos::from_millis), 1..20);
    (knobs, guard, extra, gaps, prop::collection::vec(fate, 1..12), any::<u64>()).prop_map(|(knobs, guard, extra, gaps, fates, seed)| {
        let (attempts, backoff, base, floor, budget) = knobs;
        let text = format!(
            "[pools.p]\nconcurrent = 2\n[upstreams.api]\nurl = \"http://api.test\"\n{extra}\n\
             timeout = {{ connect = \"100ms\", attempt = \"1s\", total = \"8s\" }}\n\
             retry = {{ attempts = {attempts}, backoff = \"{backoff}\", base = \"{base}ms\", budget = \"{budget}%\", budget_floor = \"{floor}/s\" }}\n\
             breaker = {{ {guard}, open = \"1s\", open_max = \"4s\", probes = 1, successes = 1 }}\n"
        );
        Case { text, gaps, fates, seed }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_script_is_told_alike_by_library_gateway_and_simulator(case in cases()) {
        check(&case);
    }
}

/// Each class has its own name in the records.
#[test]
fn a_class_that_a_closure_says_is_the_class_in_the_record() {
    for class in [Class::Transient, Class::Permanent, Class::Ambiguous, Class::Quota, Class::Auth] {
        let (clock, seen) = (Clock::simulated(), Arc::new(Mutex::new(None)));
        let told = Arc::clone(&seen);
        let policy = seawall_engine::Policy::default().with_clock(clock.clone()).on_record(move |record| {
            if let Record::Attempt(record) = record {
                told.lock().unwrap().get_or_insert(record.attempt.class);
            }
        });
        let failure = clock.run(policy.classify(|class: &Class| *class).call(|_| async { Err::<(), _>(class) })).unwrap_err();
        assert_eq!(*seen.lock().unwrap(), Some(class));
        assert_eq!(failure.into_error(), Some(class));
    }
}
