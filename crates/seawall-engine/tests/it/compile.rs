//! Compiler messages for incorrect use of the library. Each file of `tests/compile` is compiled with the libraries built for this test; the
//! output has to contain the lines of the `.txt` beside it, in order.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the latest build of a library.
fn built(name: &str) -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let is_it = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        path.extension().is_some_and(|kind| kind == "rlib") && file.starts_with(&format!("lib{name}-"))
    };
    let all = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_it);
    all.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap_or_else(|| panic!("{name} is not in {}", folder.display()))
}

fn said_of(case: &Path) -> String {
    let out = tempfile::tempdir().unwrap();
    let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["--edition=2024", "--emit=metadata", "--color=never", "--out-dir"])
        .arg(out.path());
    for name in ["seawall_engine", "tower_layer", "tower_service"] {
        let library = built(name);
        compiler.arg("-L").arg(format!("dependency={}", library.parent().unwrap().display()));
        compiler.arg("--extern").arg(format!("{name}={}", library.display()));
    }
    let output = compiler.arg(case).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{} should not compile: {said}", case.display());
    said
}

#[test]
fn mistakes_are_explained() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder.join("tests/compile")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let said = said_of(case.strip_prefix(folder).unwrap());
        let mut lines = said.lines();
        for expected in std::fs::read_to_string(case.with_extension("txt")).unwrap().lines() {
            assert!(lines.any(|line| line.contains(expected)), "{}: `{expected}` is missing or out of order in\n{said}", case.display());
        }
    }
}
