//! `seawall dlq`: lists, shows, replays, discards, exports and imports dead letters.

use super::client::AdminClient;
use super::{Admin, print_one, query, segment};
use crate::exit::{CommandError, Exit};
use crate::terminal::Terminal;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seawall dlq list --upstream mail\n  seawall dlq replay --upstream mail --rate 10/s\n  seawall dlq export > letters.ndjson\n  seawall dlq import letters.ndjson"
)]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: LetterAction,
}

#[derive(Debug, clap::Subcommand)]
enum LetterAction {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        filter: LetterOptions,
        /// Go on where the last page ended
        #[arg(long)]
        cursor: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N")]
        limit: Option<u16>,
    },
    /// Look at one dead letter
    Show { id: String },
    /// Send letters again, by id or by filter
    Replay {
        ids: Vec<String>,
        #[command(flatten)]
        filter: LetterOptions,
        /// How fast, as `10/s`; the upstream's `replay_rate` without it
        #[arg(long)]
        rate: Option<String>,
        /// Also those that may have been executed already
        #[arg(long)]
        force: bool,
        /// What the replay is called in lists
        #[arg(long)]
        name: Option<String>,
    },
    /// Forget dead letters
    Discard {
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Take over letters that `export` printed, here or elsewhere; one that is there already stays as it is
    Import {
        /// One letter on each line; `-` reads stdin
        file: PathBuf,
    },
    /// Print every letter as one JSON object on a line of its own
    Export {
        #[command(flatten)]
        filter: LetterOptions,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct LetterOptions {
    /// Only those of this upstream
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// Only those of this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Only those that failed so: transient, permanent, ambiguous, quota or auth
    #[arg(long)]
    class: Option<String>,
    /// Only those with this status or kind of error
    #[arg(long)]
    code: Option<String>,
    /// Only those of this severity: review or pager
    #[arg(long)]
    severity: Option<String>,
    /// Only those that died since then, as `2030-01-31T12:00:00Z`
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Somewhere in the URL, the detail or the reason
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
}

impl LetterOptions {
    fn pairs(&self) -> Vec<(&'static str, Option<String>)> {
        let Self { upstream, endpoint, class, code, severity, since, q } = self.clone();
        vec![
            ("upstream", upstream),
            ("endpoint", endpoint),
            ("class", class),
            ("code", code),
            ("severity", severity),
            ("since", since),
            ("q", q),
        ]
    }
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    match &args.action {
        LetterAction::List { filter, cursor, limit } => {
            let mut pairs = filter.pairs();
            pairs.extend([("cursor", cursor.clone()), ("limit", limit.map(|n| n.to_string()))]);
            let answer = client.get(&format!("/v1/dead-letters{}", query(&pairs)), "items")?;
            let columns = ["id", "queue", "endpoint", "class", "failure_code", "severity", "status", "dead_lettered_at", "error_detail"];
            args.admin.print(terminal, &answer, &columns)?;
        }
        LetterAction::Show { id } => print_one(terminal, &client.get(&format!("/v1/dead-letters/{}", segment(id)), "id")?)?,
        LetterAction::Replay { ids, filter, rate, force, name } => {
            let wish = replay_request(ids, filter, rate.as_deref(), *force, name.as_deref())?;
            let answer = client.json("POST", "/v1/dead-letters/replay", Some(&wish), "replay")?;
            print_one(terminal, &answer)?;
            return replayed(&answer);
        }
        LetterAction::Discard { ids } => return discard(&client, ids, terminal),
        LetterAction::Import { file } => return client.lines("/v1/dead-letters/import", file, &mut terminal.out()),
        LetterAction::Export { filter } => export(&client, filter, terminal)?,
    }
    Ok(Exit::Done)
}

/// A replay that sends nothing counts as a failure. Otherwise the user would believe that the letters were sent.
fn replayed(answer: &Value) -> anyhow::Result<Exit> {
    if !answer["replay"].is_null() {
        return Ok(Exit::Done);
    }
    let held_back = answer["held_back"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = held_back.first() else {
        return Err(
            CommandError { exit: Exit::Failed, message: "no dead letter matches: nothing is replayed".to_owned(), hint: None }.into()
        );
    };
    let reason = first["reason"].as_str().unwrap_or_default();
    let message = match held_back.len() {
        1 => format!("nothing is replayed: {reason}"),
        count => format!("nothing is replayed: {count} letters are held back, the first because {reason}"),
    };
    let failure = CommandError { exit: Exit::Failed, message, hint: None };
    let hint = "`--force` also sends letters that may have been executed already or were refused";
    let can_be_forced = held_back.iter().any(|letter| letter["forcible"] == true);
    Err(if can_be_forced { failure.hint(hint) } else { failure }.into())
}

/// Discards letters one by one: a missing letter does not stop the others. A failure that concerns all of them is reported once.
fn discard(client: &AdminClient, ids: &[String], terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut worst = Exit::Done;
    for id in ids {
        match client.json("DELETE", &format!("/v1/dead-letters/{}", segment(id)), None, "id") {
            Ok(_) => terminal.note(&format!("discarded {id}")),
            Err(error) => match error.downcast::<CommandError>() {
                Ok(failure) if failure.exit == Exit::Failed && failure.hint.is_none() => {
                    terminal.note(&format!("error: {id}: {failure}"));
                    worst = Exit::Failed;
                }
                Ok(failure) => return Err(failure.into()),
                Err(error) => return Err(error),
            },
        }
    }
    Ok(worst)
}

fn replay_request(ids: &[String], filter: &LetterOptions, rate: Option<&str>, force: bool, name: Option<&str>) -> anyhow::Result<Value> {
    let given: Map<String, Value> = filter.pairs().into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect();
    let mut wish = match (ids.is_empty(), given.is_empty()) {
        (false, true) => json!({ "ids": ids }),
        (true, false) => json!({ "filter": given }),
        (true, true) => return Err(CommandError::usage("say which letters: ids, or a filter such as --upstream").into()),
        (false, false) => return Err(CommandError::usage("either ids or a filter, not both").into()),
    };
    wish["force"] = json!(force);
    for (key, value) in [("rate", rate), ("name", name)] {
        if let Some(value) = value {
            wish[key] = json!(value);
        }
    }
    Ok(wish)
}

/// Exports page by page, so that neither side holds all letters in memory.
fn export(client: &AdminClient, filter: &LetterOptions, terminal: &Terminal) -> anyhow::Result<()> {
    let mut out = terminal.out();
    let mut cursor = None;
    loop {
        let mut pairs = filter.pairs();
        pairs.extend([("cursor", cursor), ("limit", Some("200".to_owned()))]);
        let page = client.get(&format!("/v1/dead-letters{}", query(&pairs)), "items")?;
        for id in page["items"].as_array().into_iter().flatten().filter_map(|letter| letter["id"].as_str()) {
            writeln!(out, "{}", client.get(&format!("/v1/dead-letters/{id}"), "id")?)?;
        }
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return Ok(());
        }
    }
}
