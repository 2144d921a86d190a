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
        #[arg(long)]
        state: Option<String>,
        #[arg(long)]
        upstream: Option<String>,
        #[arg(long)]
        cursor: Option<String>,
        #[arg(long)]
        limit: Option<u16>,
    },
    /// Look at one job
    Show { id: String },
    /// Cancel a job that is not over
    Cancel { id: String },
}

#[derive(Debug, clap::Args)]
struct Submit {
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    upstream: Option<String>,
    #[arg(long, default_value = "GET")]
    method: String,
    #[arg(long, default_value = "/")]
    path: String,
    #[arg(long)]
    body: Option<String>,
    /// A header, as `NAME: VALUE`
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    #[arg(long)]
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
    let headers = submit.headers.iter().filter_map(|header| header.split_once(':'));
    let headers: Map<String, Value> = headers.map(|(name, value)| (name.trim().to_owned(), json!(value.trim()))).collect();
    let mut job = json!({ "upstream": submit.upstream, "method": submit.method, "path": submit.path, "headers": headers });
    for (name, value) in [("body", &submit.body), ("idempotency_key", &submit.idempotency_key)] {
        if let Some(value) = value {
            job[name] = json!(value);
        }
    }
    job
}
