//! The committed corpora of the fuzz targets, fed to the functions that the targets call.

use crate::http1;
use std::fs;
use std::path::Path;

/// Feeds every file of a target's corpus to its function.
fn feed(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in paths {
        // Shown with a failure only.
        println!("{}", path.display());
        check(&fs::read(&path).unwrap());
    }
}

#[test]
fn request_heads_hold() {
    feed("request_heads", http1::request_heads);
}

#[test]
fn response_heads_hold() {
    feed("response_heads", http1::response_heads);
}

#[test]
fn request_bodies_hold() {
    feed("request_bodies", http1::request_bodies);
}

#[test]
fn response_bodies_hold() {
    feed("response_bodies", http1::response_bodies);
}
