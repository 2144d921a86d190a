//! Space kept back on the disk: a file beside the database that is given up when the disk is full, so that what is
//! running can still be finished. While it is given up, nothing new is taken.

use super::beside;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Enough for some thousand endings.
const BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct ReserveCommand {
    file: PathBuf,
    spent: bool,
}

impl ReserveCommand {
    /// Kept back where there is room for it; a disk that is full from the beginning has none to give.
    pub(super) fn beside(database: &Path) -> Self {
        let mut reserve = Self { file: beside(database, "-reserve"), spent: true };
        reserve.restore();
        reserve
    }

    pub(super) const fn is_spent(&self) -> bool {
        self.spent
    }

    /// Gives the space up. Whether there was any.
    pub(super) fn spend(&mut self) -> bool {
        let had = !self.spent;
        self.spent = true;
        had && fs::remove_file(&self.file).is_ok()
    }

    /// Takes the space again, if there is so much.
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
        // Written, not only claimed: a file of holes keeps nothing back.
        file.write_all(&vec![0; BYTES])?;
        file.sync_all()
    }
}
