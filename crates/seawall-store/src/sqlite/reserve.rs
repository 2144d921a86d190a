//! Reserved disk space: a file beside the database that is deleted when the disk is full, so that running jobs can still be finished. While
//! it is missing, nothing new is accepted.

use super::beside;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Enough for some thousand settlements.
const BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct ReserveCommand {
    file: PathBuf,
    spent: bool,
}

impl ReserveCommand {
    /// Creates the reserve, unless the disk is too full.
    pub(super) fn beside(database: &Path) -> Self {
        let mut reserve = Self { file: beside(database, "-reserve"), spent: true };
        reserve.restore();
        reserve
    }

    pub(super) const fn is_spent(&self) -> bool {
        self.spent
    }

    /// Frees the space. Returns whether there was any.
    pub(super) fn spend(&mut self) -> bool {
        let had = !self.spent;
        self.spent = true;
        had && fs::remove_file(&self.file).is_ok()
    }

    /// Reserves the space again, if the disk has it.
    pub(super) fn restore(&mut self) -> bool {
        let kept = fs::metadata(&self.file).is_ok_and(|file| file.len() == BYTES as u64) || self.fill().is_ok();
        if kept {
            self.spent = false;
        } else {
            drop(fs::remove_file(&self.file));
        }
        kept
    }

    fn fill(&self) -> std::io::Result<()> {
        let mut file = fs::File::create(&self.file)?;
        // Written instead of truncated to size: a sparse file reserves nothing.
        file.write_all(&vec![0; BYTES])?;
        file.sync_all()
    }
}
