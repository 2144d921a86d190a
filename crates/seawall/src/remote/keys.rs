//! `seawall keys`: shows keys, cools one, restores one.

use super::{Admin, segment};
use crate::exit::{CommandError, Exit};
use crate::terminal::Terminal;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  seawall keys\n  seawall keys cool youtube/a --until 2030-01-31T12:00:00Z\n  seawall keys restore a")]
pub(crate) struct Args {
    #[command(flatten)]
    admin: Admin,

    #[command(subcommand)]
    action: Option<KeyAction>,
}

#[derive(Debug, clap::Subcommand)]
enum KeyAction {
    /// Let a key rest, for an hour unless told otherwise
    Cool {
        /// `UPSTREAM/KEY`, or the key's id where only one upstream has it
        key: String,
        /// Until then, as `2030-01-31T12:00:00Z`
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
    },
    /// Make a key ready, whatever happened to it
    Restore {
        /// `UPSTREAM/KEY`, or the key's id where only one upstream has it
        key: String,
    },
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let client = args.admin.client()?;
    let all = client.get("/v1/keys", "items")?;
    let columns = ["upstream", "id", "tail", "group", "state", "until", "uses", "failures"];
    let (key, body) = match &args.action {
        None => {
            args.admin.print(terminal, &all, &columns)?;
            return Ok(Exit::Done);
        }
        Some(KeyAction::Cool { key, until }) => (key, json!({ "state": "cooling", "until": until })),
        Some(KeyAction::Restore { key }) => (key, json!({ "state": "ready" })),
    };
    let (upstream, id) = find(&all, key)?;
    let answer = client.json("PUT", &format!("/v1/keys/{}/{}", segment(&upstream), segment(&id)), Some(&body), "id")?;
    args.admin.print(terminal, &answer, &columns)?;
    Ok(Exit::Done)
}

/// Finds the one key that the argument names.
fn find(all: &Value, key: &str) -> Result<(String, String), CommandError> {
    let keys = all["items"].as_array().into_iter().flatten();
    let text = |key: &Value, name: &str| key[name].as_str().unwrap_or_default().to_owned();
    let named = keys.map(|key| (text(key, "upstream"), text(key, "id")));
    let mut meant: Vec<(String, String)> = named.filter(|(upstream, id)| id == key || format!("{upstream}/{id}") == key).collect();
    match (meant.pop(), meant.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(CommandError::usage(format!("several upstreams have a key `{key}`")).hint("write it as UPSTREAM/KEY")),
        (None, _) => Err(CommandError::usage(format!("there is no key `{key}`")).hint("`seawall keys` lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_id_or_by_its_whole_name() {
        let all = json!({ "items": [{ "upstream": "x", "id": "a" }, { "upstream": "y", "id": "a" }, { "upstream": "y", "id": "b" }] });
        assert_eq!(find(&all, "b").unwrap(), ("y".to_owned(), "b".to_owned()));
        assert_eq!(find(&all, "x/a").unwrap(), ("x".to_owned(), "a".to_owned()));
        assert!(find(&all, "a").unwrap_err().message.contains("several"));
        assert!(find(&all, "c").unwrap_err().message.contains("no key"));
    }
}
