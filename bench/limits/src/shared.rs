//! Checks of three layers in Redis over one connection, many at once, beside the same script with everything prepared and
//! beside a script that does nothing, each over a connection of the same kind.

use redis::aio::MultiplexedConnection;
use seawall_core::call::AskAnswer;
use seawall_engine::clock::Clock;
use seawall_engine::credential_pauses::CredentialMark;
use seawall_engine::limits::LimitSubject;
use seawall_engine::runtime::{Around, Live};
use seawall_engine::shared::{Took, script_arrays, scripts};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const AT_ONCE: u32 = 64;
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 9;

/// One upstream with three limits that never refuse.
pub fn live(shared: &str) -> Live {
    let text = format!(
        "[server]\nshared = \"{shared}\"\nshared_timeout = \"10s\"\n[upstreams.api]\nurl = \"http://api.invalid\"\nlimits = [\
         {{ name = \"a\", key = \"upstream\", rate = \"200000/s\", burst = 100000 }}, \
         {{ name = \"b\", key = \"ip\", rate = \"300000/s\", burst = 100000 }}, \
         {{ name = \"c\", key = \"caller\", rate = \"400000/s\", burst = 100000 }}]\n"
    );
    let config = seawall_core::config::load("bench.toml", text.as_bytes()).expect("the policy is valid");
    let around = Around { vault: &|_| Err("no secrets".to_owned()), files: &|_| Err("no files".to_owned()) };
    Live::new(config, around, None).expect("nothing is missing")
}

pub fn who(headers: &http::HeaderMap) -> LimitSubject<'_> {
    LimitSubject {
        ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        caller: "a-caller",
        user: "",
        tenant: "",
        headers,
        credential: "",
        mark: CredentialMark::NONE,
    }
}

thread_local! {
    static DONE: Cell<u32> = const { Cell::new(0) };
}

/// How many a second when so many are always under way.
async fn rate<F: Future<Output = ()> + 'static>(operation: impl Fn() -> F + Clone + 'static) -> f64 {
    let (begun, mut workers) = (Instant::now(), JoinSet::new());
    DONE.set(0);
    for _ in 0..AT_ONCE {
        let operation = operation.clone();
        workers.spawn_local(async move {
            while begun.elapsed() < ROUND {
                operation().await;
                DONE.set(DONE.get() + 1);
            }
        });
    }
    while workers.join_next().await.is_some() {}
    f64::from(DONE.get()) / begun.elapsed().as_secs_f64()
}

async fn check(live: &Live, clock: &Clock, headers: &http::HeaderMap) {
    let link = live.upstreams[0].endpoints[0].state.link().expect("state is shared");
    let (answer, took) = link.limits.take_all(&who(headers), clock).await;
    assert!(matches!((answer, &took), (AskAnswer::Limited { .. }, Took::Shared(_))), "{answer:?}");
}

/// The script as a check runs it, with nothing left to do but to send it.
fn prepared(live: &Live) -> redis::Cmd {
    let layers = live.upstreams[0].endpoints[0].state.limits.layers();
    let mut command = redis::cmd("EVALSHA");
    command.arg(scripts::TAKE.get_hash()).arg(layers.len());
    for layer in layers {
        command.arg(format!("{{seawall}}:limit:bare:{}", layer.name()));
    }
    command.arg(0).arg(1);
    for layer in layers {
        command.arg(&script_arrays::of_limit(&script_arrays::in_ticks(layer.spec()))[..]);
    }
    command
}

async fn send(mut connection: MultiplexedConnection, command: &'static redis::Cmd) {
    let _: redis::Value = command.query_async(&mut connection).await.expect("the script runs");
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

pub fn compare(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (live, clock, headers) = (leak(live(url)), leak(Clock::start()), leak(http::HeaderMap::new()));
    let bare = leak(prepared(live));
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let store = live.shared.as_ref().expect("state is shared");
        tokio::task::spawn_local(store.supervise(clock, |news| println!("{news:?}")));
        while !store.is_up() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let _: String = scripts::TAKE.load_async(&mut connection).await.expect("the script loads");
        let empty = redis::Script::new("return 1");
        let _: String = empty.load_async(&mut connection).await.expect("the script loads");
        let mut nothing = redis::cmd("EVALSHA");
        nothing.arg(empty.get_hash()).arg(0);
        let nothing = leak(nothing);
        let mut rates = [[0.0; ROUNDS]; 3];
        for round in 0..ROUNDS {
            rates[0][round] = rate(move || check(live, clock, headers)).await;
            let to = connection.clone();
            rates[1][round] = rate(move || send(to.clone(), bare)).await;
            let to = connection.clone();
            rates[2][round] = rate(move || send(to.clone(), nothing)).await;
        }
        let [ours, bare, nothing] = rates.each_mut().map(|rates| median(rates));
        println!("{AT_ONCE} at once over one connection, medians of {ROUNDS} rounds in turn");
        println!("checks of three layers          {ours:>9.0}/s");
        println!("the same script, prepared       {bare:>9.0}/s   ratio {:.2}", ours / bare);
        println!("a script that does nothing      {nothing:>9.0}/s   ratio {:.2}", ours / nothing);
        let same: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(ours, bare)| ours / bare).collect();
        println!("ratio to the same script, each round's: {same:.2?}");
    });
}

/// For tasks that live as long as the program.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
