//! Puts version, commit and its date into `--version`. Without git there is only the version.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = git(&["log", "-1", "--format=%h %cs"]);
    let version = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=SEAWALL_VERSION={version}");
    for path in ["HEAD", "refs/heads"].iter().filter_map(|path| git(&["rev-parse", "--git-path", path])) {
        println!("cargo:rerun-if-changed={path}");
    }
}
