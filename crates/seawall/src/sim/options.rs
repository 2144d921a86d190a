//! Checks of `seawall sim`'s options beyond the command line's parser: their values, and the scenarios to which they belong.

use seawall_core::policy::Share;
use seawall_core::time::Nanos;
use seawall_core::units;

use super::{Args, Scenario};
use crate::exit::CommandError;

/// Refuses an option of another scenario: it would have no effect, and the user would believe that it had.
pub(super) fn check(args: &Args) -> anyhow::Result<()> {
    use Scenario::{Contention, Herd, Outage, Replay, Surge};
    let given: [(&str, bool, &[Scenario]); 10] = [
        ("--clients", !args.clients.is_empty(), &[Contention]),
        ("--rho", !args.rho.is_empty(), &[Outage]),
        ("--endpoint", args.endpoint.is_some(), &[Surge]),
        ("--factor", args.factor.is_some(), &[Surge]),
        ("--rate", args.rate.is_some(), &[Surge]),
        ("--for", args.lasting.is_some(), &[Surge]),
        ("LOG", args.log.is_some(), &[Replay]),
        ("--policy", !args.policy.is_empty(), &[Contention, Herd, Outage]),
        ("--svg", args.svg.is_some(), &[Contention, Herd, Outage, Surge]),
        ("--config", args.config.is_some(), &[Herd, Outage, Surge, Replay]),
    ];
    for (option, is_given, scenarios) in given {
        let names: Vec<String> = scenarios.iter().map(|scenario| format!("`sim {}`", name(*scenario))).collect();
        CommandError::require(!is_given || scenarios.contains(&args.scenario), || format!("`{option}` is for {} only", names.join(", ")))?;
    }
    let has_log = args.scenario != Replay || args.log.is_some();
    CommandError::require(has_log, || "`sim replay` needs a log: `seawall sim replay LOG -c FILE`".to_owned())?;
    Ok(())
}

const fn name(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Contention => "contention",
        Scenario::Herd => "herd",
        Scenario::Outage => "outage",
        Scenario::Surge => "surge",
        Scenario::Replay => "replay",
    }
}

pub(super) fn rho(text: &str) -> Result<Share, String> {
    let share = between(text, 0.01, 2.0, "a share such as 0.8")?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between one hundredth and two")]
    Ok(Share((share * 1e6).round() as u32))
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    between(text, 1.0, 1000.0, "a factor such as 10")
}

/// Parses `20` or `20/s`, the notation of other rates.
pub(super) fn calls_per_second(text: &str) -> Result<f64, String> {
    if text.contains('/') {
        let rate = units::rate(text)?.per_second_f64();
        return between(&rate.to_string(), 0.001, 10_000.0, "a rate such as 20");
    }
    between(text, 0.001, 10_000.0, "a rate such as 20")
}

pub(super) fn surge_length(text: &str) -> Result<Nanos, String> {
    let length = units::duration(text)?;
    if length < Nanos::from_secs(1) || length > Nanos::from_secs(3600) {
        return Err("expected between 1s and 1h".to_owned());
    }
    Ok(length)
}

fn between(text: &str, low: f64, high: f64, what: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("expected {what}"))?;
    if (low..=high).contains(&number) { Ok(number) } else { Err(format!("expected {what}, between {low} and {high}")) }
}
