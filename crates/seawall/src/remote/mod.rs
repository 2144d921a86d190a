//! Doors to a running Seawall: jobs, dead letters, keys, breakers and pauses through its admin API.

pub(crate) mod breakers;
mod client;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod letters;
pub(crate) mod pauses;
mod table;

use crate::terminal::Terminal;
use client::AdminClient;
use serde_json::Value;
use std::io::Write as _;

/// Where to find it, and how to show what it says.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Admin {
    /// The admin port of a running Seawall; its token is taken from `SEAWALL_ADMIN_TOKEN`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7330", global = true)]
    admin: String,

    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

impl Admin {
    fn client(&self) -> anyhow::Result<AdminClient> {
        AdminClient::new(&self.admin, crate::setup::admin_token())
    }

    /// Prints a list as a table of these members, or as JSON.
    fn print(&self, terminal: &Terminal, answer: &Value, columns: &[&str]) -> anyhow::Result<()> {
        let mut out = terminal.out();
        if self.json {
            writeln!(out, "{answer:#}")?;
        } else if let Some(items) = answer["items"].as_array() {
            table::write(&mut out, items, columns)?;
            if let Some(cursor) = answer["next_cursor"].as_str() {
                terminal.note(&format!("there are more: --cursor {cursor}"));
            }
        } else {
            table::write(&mut out, std::slice::from_ref(answer), columns)?;
        }
        Ok(())
    }
}

/// Prints one object with all its members.
fn print_one(terminal: &Terminal, answer: &Value) -> anyhow::Result<()> {
    writeln!(terminal.out(), "{answer:#}")?;
    Ok(())
}

/// Builds `?a=b&c=d` from the values that are present.
fn query(pairs: &[(&str, Option<String>)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs {
        if let Some(value) = value {
            text.append_pair(name, value);
        }
    }
    let text = text.finish();
    if text.is_empty() { text } else { format!("?{text}") }
}

/// Encodes a name as a segment of a path.
fn segment(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20")
}
