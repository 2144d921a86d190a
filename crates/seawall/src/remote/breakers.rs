//! `seawall breakers`: shows breakers, or holds one open or closed.

use super::{Admin, segment};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  seawall breakers\n  seawall breakers open youtube/search\n  seawall breakers auto youtube")]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: Option<BreakerAction>,
}

#[derive(Debug, clap::Subcommand)]
enum BreakerAction {
    /// Hold it open: nothing is sent until it is let go
    Open {
        /// `UPSTREAM` or `UPSTREAM/ENDPOINT`
        place: String,
    },
    /// Hold it closed: everything is sent, whatever comes back
    Close {
        /// `UPSTREAM` or `UPSTREAM/ENDPOINT`
        place: String,
    },
    /// Let go of it
    Auto {
        /// `UPSTREAM` or `UPSTREAM/ENDPOINT`
        place: String,
    },
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    let answer = match &args.action {
        None => client.get("/v1/breakers", "items")?,
        Some(action) => {
            let (place, state) = match action {
                BreakerAction::Open { place } => (place, "open"),
                BreakerAction::Close { place } => (place, "closed"),
                BreakerAction::Auto { place } => (place, "auto"),
            };
            let path: Vec<String> = place.splitn(2, '/').map(segment).collect();
            client.json("PUT", &format!("/v1/breakers/{}", path.join("/")), Some(&json!({ "state": state })), "items")?
        }
    };
    args.admin.print(terminal, &answer, &["upstream", "endpoint", "state", "forced", "retry_at", "open_seconds_total"])?;
    Ok(Exit::Done)
}
