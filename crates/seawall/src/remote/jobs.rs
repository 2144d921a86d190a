//! `seawall jobs`: submit, list, look at, cancel.

use super::{Admin, print_one, query, segment};
use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Context as _;
use serde_json::{Map, Value, json};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seawall jobs submit --upstream mail --method POST --path /send --body '{\"to\":\"ann\"}'\n  seawall jobs submit --file jobs.ndjson\n  seawall jobs list --state waiting"
)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Submit one job, or a file with one JSON object on each line
    Submit(Submit),
    /// List jobs, newest first
    List {
        /// Only those that are queued, running, waiting, done, dead or cancelled
        #[arg(long)]
        state: Option<String>,
        /// Only those of this upstream
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
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
    #[arg(long, value_name = "NAME", required_unless_present = "file", conflicts_with = "file")]
    upstream: Option<String>,
    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path and query below the upstream's URL
    #[arg(long, default_value = "/")]
    path: String,
    /// The request's body, as text
    #[arg(long)]
    body: Option<String>,
    /// A header, as `NAME: VALUE`; may be given again
    #[arg(long = "header", value_name = "HEADER", value_parser = crate::cli::header)]
    headers: Vec<(String, String)>,
    /// A second job with this key is the first one
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// One JSON object on each line; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    match &args.action {
        Action::Submit(Submit { file: Some(file), .. }) => {
            let mut text = Vec::new();
            let read = if file.as_os_str() == "-" {
                std::io::stdin().read_to_end(&mut text)
            } else {
                std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut text))
            };
            read.with_context(|| format!("cannot read `{}`", file.display()))?;
            let reply = client.send("POST", "/v1/jobs", "application/x-ndjson", Some(&text))?;
            terminal.out().write_all(&reply.body)?;
            let refused = String::from_utf8_lossy(&reply.body).lines().any(|line| !line.contains("\"id\":") || line.contains("\"code\":"));
            return Ok(if refused { Exit::Failed } else { Exit::Done });
        }
        Action::Submit(submit) => print_one(terminal, &client.json("POST", "/v1/jobs", Some(&job(submit)))?)?,
        Action::List { state, upstream, cursor, limit } => {
            let pairs = [
                ("state", state.clone()),
                ("upstream", upstream.clone()),
                ("cursor", cursor.clone()),
                ("limit", limit.map(|n| n.to_string())),
            ];
            let answer = client.get(&format!("/v1/jobs{}", query(&pairs)))?;
            args.admin.print(terminal, &answer, &["id", "upstream", "method", "path", "state", "attempts", "next_attempt_at", "error"])?;
        }
        Action::Show { id } => print_one(terminal, &client.get(&format!("/v1/jobs/{}", segment(id)))?)?,
        Action::Cancel { id } => print_one(terminal, &client.json("DELETE", &format!("/v1/jobs/{}", segment(id)), None)?)?,
    }
    Ok(Exit::Done)
}

fn job(submit: &Submit) -> Value {
    let headers: Map<String, Value> = submit.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut job = json!({ "upstream": submit.upstream, "method": submit.method, "path": submit.path, "headers": headers });
    for (name, value) in [("body", &submit.body), ("idempotency_key", &submit.idempotency_key)] {
        if let Some(value) = value {
            job[name] = json!(value);
        }
    }
    job
}
