//! Disks with little space or without write access. Only root can mount them.

use std::path::PathBuf;
use std::process::Command;

/// A file system of eight megabytes, unmounted at the end of the test.
pub(crate) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(crate) fn mount() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(folder.path()).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a file system can be mounted only by root: run this test as root");
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Enlarges the disk, as an operator would.
    pub(crate) fn grow(&self) {
        let status = Command::new("mount").args(["-o", "remount,size=64m"]).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !std::thread::panicking() {
            assert!(unmounted.unwrap().success());
        }
    }
}

/// A folder that no user can write, until the end of the test.
pub(crate) struct ReadOnly(tempfile::TempDir);

impl ReadOnly {
    pub(crate) fn mount(folder: tempfile::TempDir) -> Self {
        let bound = Command::new("mount").arg("--bind").arg(folder.path()).arg(folder.path()).status();
        assert!(bound.is_ok_and(|status| status.success()), "a file system can be mounted only by root: run this test as root");
        assert!(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(folder.path()).status().unwrap().success());
        Self(folder)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !std::thread::panicking() {
            assert!(unmounted.unwrap().success());
        }
    }
}
