//! The command line itself: help, completions, manual, colour, pipes and exit codes.

use crate::dir::{Dir, UPSTREAM, finish};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["check"],
    &["demo"],
    &["serve"],
    &["explain"],
    &["sim"],
    &["config"],
    &["config", "init"],
    &["config", "schema"],
    &["config", "presets"],
    &["config", "explain"],
    &["completions"],
    &["man"],
];

#[test]
fn every_help_fits_a_hundred_columns() {
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let run = Dir::new().run(command.iter().chain(&[flag])).ends_with(0);
            assert!(run.err.is_empty() && run.out.contains("Usage:"), "{command:?}: {run:?}");
            let wide: Vec<&str> = run.out.lines().filter(|line| line.chars().count() > 100).collect();
            assert!(wide.is_empty(), "{command:?} {flag}:\n{}", wide.join("\n"));
        }
    }
}

#[test]
fn commands_that_need_examples_have_them() {
    for command in [&[][..], &["check"], &["explain"], &["sim"]] {
        let help = Dir::new().run(command.iter().chain(&["--help"])).out;
        assert!(help.contains("Examples:"), "{command:?}:\n{help}");
    }
}

#[test]
fn the_help_of_serve_names_everything_that_it_runs() {
    let help = Dir::new().run(["serve", "--help"]).out.to_lowercase();
    for part in ["gateway", "job", "schedules", "admin api", "dashboard", "/metrics", "130"] {
        assert!(help.contains(part), "{part}:\n{help}");
    }
}

#[test]
fn without_arguments_there_is_help() {
    let run = Dir::new().run::<&str>([]).ends_with(2);
    assert!(run.err.contains("Usage:") && run.err.contains("Examples:"), "{run:?}");
}

#[test]
fn what_does_not_exist_is_bad_usage_with_a_proposal() {
    let run = Dir::new().run(["chekc"]).ends_with(2);
    assert!(run.err.contains("check"), "{}", run.err);
    Dir::new().run(["check", "--no-such-flag"]).ends_with(2);
    Dir::new().run(["config"]).ends_with(2);
    Dir::new().run(["completions", "nosuchshell"]).ends_with(2);
}

#[test]
fn the_version_says_what_was_built() {
    let run = Dir::new().run(["--version"]).ends_with(0);
    assert!(run.out.starts_with(concat!("seawall ", env!("CARGO_PKG_VERSION"))), "{}", run.out);
}

#[test]
fn completions_and_the_manual_know_every_command() {
    let dir = Dir::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = dir.run(["completions", shell]).ends_with(0).out;
        for command in ["check", "explain", "sim", "presets"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let page = dir.run(["man"]).ends_with(0).out;
    assert!(page.contains(".TH seawall 1") && page.contains("check"), "{page}");
    dir.run(["man", "--out", "pages"]).ends_with(0);
    assert!(dir.read("pages/seawall-check.1").contains("strict"));
}

#[test]
fn a_reader_that_has_enough_ends_the_program_quietly() {
    for args in [
        &["config", "schema"][..],
        &["config", "init", "--full"],
        &["completions", "bash"],
        &["check", "--json"],
        &["sim", "herd", "--csv", "--runs", "1"],
        &["--help"],
    ] {
        let dir = Dir::with(UPSTREAM);
        let mut child = dir.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn colour_is_only_where_it_is_wanted() {
    let dir = Dir::with(UPSTREAM);
    let coloured = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = dir.command(args);
        command.envs(env.iter().copied());
        let run = finish(command);
        run.out.contains('\u{1b}') || run.err.contains('\u{1b}')
    };
    for command in [&["check"][..], &["check", "-c", "nowhere.toml"], &["explain", "GET", "/a/x"], &["config", "presets"]] {
        let with = |more: &[&'static str]| command.iter().copied().chain(more.iter().copied()).collect::<Vec<_>>();
        assert!(!coloured(command, &[]), "a pipe is no terminal: {command:?}");
        assert!(coloured(&with(&["--color", "always"]), &[]), "{command:?}");
        assert!(coloured(&with(&["--color", "always"]), &[("NO_COLOR", "1")]), "the flag wins: {command:?}");
        assert!(coloured(command, &[("CLICOLOR_FORCE", "1")]), "{command:?}");
        assert!(!coloured(&with(&["--color", "never"]), &[("CLICOLOR_FORCE", "1")]), "{command:?}");
        assert!(coloured(command, &[("SEAWALL_COLOR", "always")]), "{command:?}");
    }
    dir.run(["check", "--color", "mauve"]).ends_with(2);
}

#[test]
fn the_configuration_may_be_named_by_flag_environment_or_place() {
    let dir = Dir::with(UPSTREAM);
    dir.write("other.toml", "[upstreams.other]\nurl = \"https://o.test\"\n");
    let mut command = dir.command(["check"]);
    command.env("SEAWALL_CONFIG", "other.toml");
    assert!(finish(command).out.contains("other/default"));
    let mut command = dir.command(["check", "-c", "seawall.toml"]);
    command.env("SEAWALL_CONFIG", "other.toml");
    assert!(finish(command).out.contains("a/default"), "the flag wins");
    let empty = Dir::new();
    std::fs::create_dir_all(empty.path(".config/seawall")).unwrap();
    empty.write(".config/seawall/seawall.toml", UPSTREAM);
    empty.run(["check"]).ends_with(0);
}

#[test]
fn quiet_says_only_what_was_asked_for() {
    let run = Dir::new().run(["config", "init", "--quiet"]).ends_with(0);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("", ""));
}
