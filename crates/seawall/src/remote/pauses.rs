//! `seawall pauses`: shows the pauses that providers asked for, or ends one.

use super::{Admin, segment};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  seawall pauses\n  seawall pauses lift youtube/search")]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: Option<PauseAction>,
}

#[derive(Debug, clap::Subcommand)]
enum PauseAction {
    /// End it now, on every instance; the next 429 may begin another
    Lift {
        /// `UPSTREAM` or `UPSTREAM/ENDPOINT`
        place: String,
    },
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    let answer = match &args.action {
        None => client.get("/v1/pauses", "items")?,
        Some(PauseAction::Lift { place }) => {
            let path: Vec<String> = place.splitn(2, '/').map(segment).collect();
            client.json("PUT", &format!("/v1/pauses/{}", path.join("/")), Some(&json!({ "state": "lifted" })), "items")?
        }
    };
    args.admin.print(terminal, &answer, &["upstream", "endpoint", "since", "until"])?;
    Ok(Exit::Done)
}
