//! The error conventions of real APIs, shipped as data: each preset is a file in the syntax of users' own rules.

use toml::de::DeTable;

use super::parse::{self, Problems};
use super::rules::{Rule, RuleSource};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// The file: rules, and hints for the upstream that uses it.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal $(also $($alias:literal)+)?),+ $(,)?) => {
        &[$(Preset {
            name: $name,
            aliases: &[$($($alias),+)?],
            text: include_str!(concat!("../config/presets/", $name, ".toml")),
        }),+]
    };
}

const PRESETS: &[Preset] = presets! {
    "google" also "youtube",
    "gemini",
    "spotify",
    "lastfm",
    "subsonic" also "opensubsonic" "navidrome",
    "openai",
    "anthropic",
    "github",
    "stripe",
    "slack",
    "x" also "twitter",
    "musicbrainz",
    "fanart",
    "aws",
    "shopify",
    "graphql",
    "discord",
    "openrouter",
    "generic" also "ietf",
};

impl Preset {
    #[must_use]
    pub const fn all() -> &'static [Self] {
        PRESETS
    }

    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name || preset.aliases.contains(&name))
    }

    /// The preset in one line: the file's own `description`.
    #[must_use]
    pub fn description(&self) -> String {
        let document = DeTable::parse(self.text).ok();
        let text = document.as_ref().and_then(|document| document.get_ref().get("description")?.get_ref().as_str());
        text.unwrap_or_default().to_owned()
    }

    /// Its rules, in order. Our own tests read every preset, so only a broken build gives an error.
    ///
    /// # Errors
    /// Every problem of the file.
    pub fn rules(&self) -> Result<Vec<Rule>, Problems> {
        let source = if self.name == "generic" { RuleSource::Generic } else { RuleSource::Preset };
        let document = DeTable::parse(self.text).map_err(|error| {
            let mut problems = Problems::default();
            problems.add(error.span().unwrap_or(0..0), error.message());
            problems
        })?;
        document.get_ref().get("classify").map_or_else(|| Ok(Vec::new()), |list| parse::rules(list, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_reads_and_its_rules_have_names_of_their_own() {
        for preset in Preset::all() {
            let rules = preset.rules().unwrap_or_else(|problems| panic!("{}: {problems:?}", preset.name));
            let mut names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{}", preset.name);
            assert!(count > 0, "{}", preset.name);
        }
    }

    #[test]
    fn names_and_aliases_lead_to_one_preset_each() {
        let mut words: Vec<&str> = Preset::all().iter().flat_map(|preset| preset.aliases.iter().copied().chain([preset.name])).collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(words.iter().all(|word| Preset::named(word).is_some()));
        assert_eq!(Preset::named("no such"), None);
    }
}
