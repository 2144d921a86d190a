//! `seawall store`: backs up the database file while it is in use, restores it while it is not, and checks it.

use crate::args::ConfigArg;
use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::Terminal;
use seawall_store::Store;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  seawall store backup seawall-backup.db
  seawall store check
  seawall store restore seawall-backup.db

A copy of `seawall.db` alone is not enough while Seawall runs: what was written last is in `seawall.db-wal`. `store backup` writes one \
file that holds everything, also under load. For PostgreSQL use pg_dump.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: StoreAction,
}

#[derive(Debug, clap::Subcommand)]
enum StoreAction {
    /// Write a copy of the database, also while Seawall runs
    Backup {
        #[command(flatten)]
        file: ConfigArg,
        /// The file to write; it must not exist
        copy: PathBuf,
    },
    /// Put a copy in the place of the database, while no Seawall runs
    Restore {
        #[command(flatten)]
        file: ConfigArg,
        /// A file that `store backup` wrote
        copy: PathBuf,
    },
    /// Read all of the database and say whether it is whole
    Check {
        #[command(flatten)]
        file: ConfigArg,
    },
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (StoreAction::Backup { file, .. } | StoreAction::Restore { file, .. } | StoreAction::Check { file }) = &args.action;
    let (path, config) = setup::load(file.path.as_deref())?;
    let database = setup::database_file(&config.server.store, &setup::environment(&path))?;
    let shown = database.display();
    let failed = |error: seawall_store::Error| CommandError::store(format!("{shown}: {error}"));
    match &args.action {
        StoreAction::Backup { copy, .. } => {
            Store::back_up(&database, copy).map_err(failed)?;
            terminal.note(&format!("{shown} is copied to {}", copy.display()));
        }
        StoreAction::Restore { copy, .. } => {
            let aside = Store::restore(&database, copy).map_err(failed)?;
            if let Some(aside) = aside {
                terminal.note(&format!("what was there is now {}", aside.display()));
            }
            terminal.note(&format!("{shown} is restored from {}", copy.display()));
        }
        StoreAction::Check { .. } => {
            Store::check(&database).map_err(failed)?;
            terminal.note(&format!("{shown} is whole"));
        }
    }
    Ok(Exit::Done)
}
