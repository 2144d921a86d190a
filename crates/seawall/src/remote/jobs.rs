//! `seawall jobs`: submits, lists, shows and cancels jobs.

use super::{Admin, print_one, query, segment};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seawall jobs submit --upstream mail --method POST --path /send --body '{\"to\":\"ann\"}'\n  seawall jobs submit --upstream mail --path /digest --run-at 2030-01-31T12:00:00Z\n  seawall jobs submit --file jobs.ndjson\n  seawall jobs list --state waiting"
)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: JobAction,
}

#[derive(Debug, clap::Subcommand)]
enum JobAction {
    /// Submit one job, or a file with one JSON object on each line
    Submit(Box<Submit>),
    /// List jobs, newest first
    List {
        /// Only those that are queued, running, waiting, done, dead or cancelled
        #[arg(long)]
        state: Option<String>,
        /// Only those of this upstream
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
        /// Only those that belong together by this id
        #[arg(long, value_name = "ID")]
        correlation_id: Option<String>,
        /// Go on where the last page ended
        #[arg(long)]
        cursor: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N")]
        limit: Option<u16>,
    },
    /// Look at one job
    Show { id: String },
    /// Cancel a job that is not over
    Cancel { id: String },
}

#[derive(Debug, clap::Args)]
struct Submit {
    /// Where it goes
    #[arg(long, value_name = "NAME", required_unless_present_any = ["file", "url"], conflicts_with_all = ["file", "url"])]
    upstream: Option<String>,
    /// Where it goes, where that is no upstream: a whole URL that the server may reach
    #[arg(long, conflicts_with_all = ["file", "path"])]
    url: Option<String>,
    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path and query below the upstream's URL
    #[arg(long)]
    path: Option<String>,
    /// The request's body, as text
    #[arg(long)]
    body: Option<String>,
    /// A header, as `NAME: VALUE`; may be given again
    #[arg(long = "header", value_name = "HEADER", value_parser = crate::args::header)]
    headers: Vec<(String, String)>,
    /// A second job with this key is the first one
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Not before then, as `2030-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<String>,
    /// Not before so long, as `90s`
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// No attempt after then, as `2030-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
    /// Higher goes first, from -1000 to 1000
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// What it belongs together with; `jobs list` can ask for it
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Whose turn it takes among others
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Where to tell how it ended, signed
    #[arg(long, value_name = "URL")]
    callback: Option<String>,
    /// One JSON object on each line; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    match &args.action {
        JobAction::Submit(submit) => match &submit.file {
            Some(file) => return client.lines("/v1/jobs", file, &mut terminal.out()),
            None => print_one(terminal, &client.json("POST", "/v1/jobs", Some(&job(submit)), "id")?)?,
        },
        JobAction::List { state, upstream, correlation_id, cursor, limit } => {
            let pairs = [
                ("state", state.clone()),
                ("upstream", upstream.clone()),
                ("correlation_id", correlation_id.clone()),
                ("cursor", cursor.clone()),
                ("limit", limit.map(|n| n.to_string())),
            ];
            let answer = client.get(&format!("/v1/jobs{}", query(&pairs)), "items")?;
            args.admin.print(terminal, &answer, &["id", "upstream", "method", "path", "state", "attempts", "next_attempt_at", "error"])?;
        }
        JobAction::Show { id } => print_one(terminal, &client.get(&format!("/v1/jobs/{}", segment(id)), "id")?)?,
        JobAction::Cancel { id } => print_one(terminal, &client.json("DELETE", &format!("/v1/jobs/{}", segment(id)), None, "id")?)?,
    }
    Ok(Exit::Done)
}

fn job(submit: &Submit) -> Value {
    let headers: Map<String, Value> = submit.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut job = json!({ "method": submit.method, "headers": headers });
    let members = [
        ("upstream", &submit.upstream),
        ("url", &submit.url),
        ("path", &submit.path),
        ("body", &submit.body),
        ("idempotency_key", &submit.idempotency_key),
        ("run_at", &submit.run_at),
        ("delay", &submit.delay),
        ("expires_at", &submit.expires_at),
        ("correlation_id", &submit.correlation_id),
        ("tenant", &submit.tenant),
        ("callback", &submit.callback),
    ];
    for (name, value) in members {
        if let Some(value) = value {
            job[name] = json!(value);
        }
    }
    if let Some(priority) = submit.priority {
        job["priority"] = json!(priority);
    }
    job
}
