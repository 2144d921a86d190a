//! Parses TOML text into checked values: every key is looked up in the shape, every value parsed by its kind, and all problems are
//! collected.

use super::node::{ConfigLayer, ConfigValue, Node, Tree, ValueOrigin};
use super::problem::Diagnostic;
use super::shape::{KeyShape, TableShape, ValueKind};
use super::{place, url};
use crate::classify;
use crate::spelling::nearest;
use crate::units;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Walks one document. `partial` documents (the built-in defaults, presets) need not hold required keys.
pub(crate) struct Walker<'t> {
    pub text: &'t str,
    pub layer: ConfigLayer,
    pub partial: bool,
    pub problems: Vec<Diagnostic>,
    /// The start of each line after the first; counting lines again for every value would make large files slow.
    lines: Vec<usize>,
}

impl<'t> Walker<'t> {
    pub(crate) fn new(text: &'t str, layer: ConfigLayer, partial: bool) -> Self {
        let lines = text.match_indices('\n').map(|(newline, _)| newline + 1).collect();
        Self { text, layer, partial, problems: Vec::new(), lines }
    }

    /// Returns the document's tree; the problems are in `problems`.
    pub(crate) fn document(&mut self, shape: &'static TableShape) -> Tree {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            self.problems.push(Diagnostic::new(span, "", format!("not valid TOML: {}", error.message())));
        }
        if !self.problems.is_empty() {
            return Tree::default();
        }
        let span = document.span();
        self.table("", shape, document.get_ref(), &span)
    }

    fn table(&mut self, path: &str, shape: &'static TableShape, table: &DeTable<'_>, span: &Range<usize>) -> Tree {
        let mut tree = Tree::default();
        for (name, value) in table {
            let here = join(path, name.get_ref());
            let Some(key) = shape.key(name.get_ref()) else {
                self.unknown(&here, name, shape);
                continue;
            };
            if let Some(node) = self.value(&here, key, value) {
                tree.0.insert(key.name.to_owned(), node);
            }
        }
        if !self.partial {
            for key in shape.iter().filter(|key| key.required && !table.iter().any(|(name, _)| name.get_ref() == key.name)) {
                self.problems.push(Diagnostic::new(
                    span.clone(),
                    join(path, key.name),
                    format!("missing: {} needs `{}` ({})", shape.what, key.name, key.doc),
                ));
            }
        }
        tree
    }

    fn unknown(&mut self, path: &str, name: &Spanned<std::borrow::Cow<'_, str>>, shape: &'static TableShape) {
        let mut problem = Diagnostic::new(name.span(), path, format!("{} has no key `{}`", shape.what, name.get_ref()));
        problem = match nearest(name.get_ref(), shape.iter().map(|key| key.name)) {
            Some(near) => problem.help(format!("did you mean `{near}`?")),
            None => problem.help(format!("its keys are {}", shape.iter().map(|key| key.name).collect::<Vec<_>>().join(", "))),
        };
        self.problems.push(problem);
    }

    fn node(&self, value: ConfigValue, span: &Range<usize>) -> Node {
        let line = self.lines.partition_point(|start| *start <= span.start) + 1;
        Node { value, origin: ValueOrigin { layer: self.layer.clone(), line, span: span.clone() } }
    }

    fn value(&mut self, path: &str, key: &'static KeyShape, value: &Spanned<DeValue<'_>>) -> Option<Node> {
        self.kind(path, &key.kind, value)
    }

    fn kind(&mut self, path: &str, kind: &'static ValueKind, value: &Spanned<DeValue<'_>>) -> Option<Node> {
        let span = value.span();
        let parsed = match (kind, value.get_ref()) {
            (ValueKind::Table(shape), DeValue::Table(table)) => Ok(ConfigValue::Table(self.table(path, shape, table, &span))),
            (ValueKind::Map(shape), DeValue::Table(table)) => Ok(ConfigValue::Table(self.map(path, shape, table))),
            (ValueKind::Tables(shape), DeValue::Array(items)) => Ok(ConfigValue::List(self.tables(path, shape, items.iter()))),
            (ValueKind::Rules(_), DeValue::Array(items)) => Ok(ConfigValue::Rules(self.rules(path, items.iter()))),
            (ValueKind::List(inner) | ValueKind::OneOrMany(inner), DeValue::Array(items)) => {
                let nodes = items.iter().enumerate().filter_map(|(i, item)| self.kind(&format!("{path}[{i}]"), inner, item)).collect();
                Ok(ConfigValue::List(nodes))
            }
            (ValueKind::OneOrMany(inner), _) => Ok(ConfigValue::List(self.kind(path, inner, value).into_iter().collect())),
            (ValueKind::Strings, DeValue::Table(table)) => Ok(ConfigValue::Table(self.strings(path, table))),
            (ValueKind::Counts, DeValue::Table(table)) => Ok(ConfigValue::Table(self.counts(path, table))),
            (ValueKind::Either(_, inner), DeValue::Table(_)) | (ValueKind::Either(inner, _), _) => return self.kind(path, inner, value),
            (kind, scalar) => leaf(kind, scalar),
        };
        match parsed {
            Ok(value) => Some(self.node(value, &span)),
            Err(message) => {
                self.problems.push(Diagnostic::new(span, path, message));
                None
            }
        }
    }

    fn map(&mut self, path: &str, shape: &'static TableShape, table: &DeTable<'_>) -> Tree {
        let mut tree = Tree::default();
        for (name, value) in table {
            let here = join(path, name.get_ref());
            if let Some(why) = bad_name(name.get_ref()) {
                self.problems.push(Diagnostic::new(name.span(), &here, why));
            }
            let DeValue::Table(inner) = value.get_ref() else {
                self.problems.push(Diagnostic::new(value.span(), &here, format!("expected a table: {}", shape.what)));
                continue;
            };
            let inner = self.table(&here, shape, inner, &name.span());
            let node = self.node(ConfigValue::Table(inner), &name.span());
            tree.0.insert(name.get_ref().to_string(), node);
        }
        tree
    }

    fn tables<'v>(&mut self, path: &str, shape: &'static TableShape, items: impl Iterator<Item = &'v Spanned<DeValue<'v>>>) -> Vec<Node> {
        let mut nodes = Vec::new();
        for (i, item) in items.enumerate() {
            let here = format!("{path}[{i}]");
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(Diagnostic::new(item.span(), here, format!("expected a table: {}", shape.what)));
                continue;
            };
            let tree = self.table(&here, shape, table, &item.span());
            nodes.push(self.node(ConfigValue::Table(tree), &item.span()));
        }
        nodes
    }

    fn rules<'v>(&mut self, path: &str, items: impl Iterator<Item = &'v Spanned<DeValue<'v>>>) -> Vec<Arc<classify::Rule>> {
        let source = match &self.layer {
            ConfigLayer::BuiltIn => classify::RuleSource::Generic,
            ConfigLayer::Profile(_) => classify::RuleSource::Profile,
            ConfigLayer::Preset(name) if &**name == "generic" => classify::RuleSource::Generic,
            ConfigLayer::Preset(_) => classify::RuleSource::Preset,
            ConfigLayer::File(_) if path.contains(".endpoints[") => classify::RuleSource::Endpoint,
            ConfigLayer::File(_) => classify::RuleSource::Upstream,
        };
        let mut rules = Vec::new();
        for (i, item) in items.enumerate() {
            let here = format!("{path}[{i}]");
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(Diagnostic::new(item.span(), here, "expected a table: a classify rule".to_owned()));
                continue;
            };
            match classify::parse::rule(table, item.span(), source) {
                Ok(rule) => rules.push(Arc::new(rule)),
                Err(found) => self.problems.extend(found.0.into_iter().map(|(span, message)| Diagnostic::new(span, here.clone(), message))),
            }
        }
        rules
    }

    fn strings(&mut self, path: &str, table: &DeTable<'_>) -> Tree {
        let mut tree = Tree::default();
        for (name, value) in table {
            match value.get_ref() {
                DeValue::String(text) => {
                    let node = self.node(ConfigValue::Text(text.to_string()), &value.span());
                    tree.0.insert(name.get_ref().to_string(), node);
                }
                _ => self.problems.push(Diagnostic::new(value.span(), join(path, name.get_ref()), "expected a string")),
            }
        }
        tree
    }

    fn counts(&mut self, path: &str, table: &DeTable<'_>) -> Tree {
        const COUNT: ValueKind = ValueKind::Int { min: 0, max: 1_000_000 };
        let mut tree = Tree::default();
        for (name, value) in table {
            if let Some(node) = self.kind(&join(path, name.get_ref()), &COUNT, value) {
                tree.0.insert(name.get_ref().to_string(), node);
            }
        }
        tree
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Names must be usable as path segments, metric labels and log fields.
fn bad_name(name: &str) -> Option<String> {
    let fine = !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    (!fine || name == "-" || name.starts_with('.'))
        .then(|| format!("`{name}` cannot be a name: use letters, digits, `-`, `_` and `.`, at most 64"))
}

/// Parses a single value by its kind.
fn leaf(kind: &'static ValueKind, value: &DeValue<'_>) -> Result<ConfigValue, String> {
    match (kind, value) {
        (ValueKind::Duration { zero }, DeValue::String(text)) => match units::duration(text)? {
            length if length.0 == 0 && !zero => Err("must be above zero".to_owned()),
            length => Ok(ConfigValue::Duration(length)),
        },
        (ValueKind::Rate { zero }, DeValue::String(text)) => match units::rate(text)? {
            rate if rate.count == 0 && !zero => Err("must be above zero: this would refuse everything".to_owned()),
            rate => Ok(ConfigValue::Rate(rate)),
        },
        (ValueKind::Size, DeValue::String(text)) => units::size(text).map(ConfigValue::Size),
        (ValueKind::Share, DeValue::String(text)) => units::share(text).map(ConfigValue::Share),
        (ValueKind::Duration { .. }, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}s\" or \"{n}ms\"")),
        (ValueKind::Size, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}KiB\" or \"{n}MiB\"")),
        (ValueKind::Rate { .. }, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}/s\" or \"{n}/m\"")),
        (ValueKind::Share, DeValue::Integer(n)) => Err(format!("missing unit: shares are written as \"{n}%\"")),
        (ValueKind::Share, DeValue::Float(n)) => Err(format!("missing unit: shares are written in percent, as in \"20%\", not {n}")),
        (ValueKind::Int { min, max }, DeValue::Integer(n)) => integer(n, *min, *max),
        (ValueKind::Float { min, max }, DeValue::Float(n)) => float(n.as_str(), *min, *max),
        (ValueKind::Float { min, max }, DeValue::Integer(n)) => float(n.as_str(), *min, *max),
        (ValueKind::Bool, DeValue::Boolean(yes)) => Ok(ConfigValue::Bool(*yes)),
        (kind, DeValue::String(text)) => text_value(kind, text),
        (kind, other) => Err(format!("expected {}, found {}", expected(kind), article(other.type_str()))),
    }
}

fn integer(n: &toml::de::DeInteger<'_>, min: u64, max: u64) -> Result<ConfigValue, String> {
    match i128::from_str_radix(n.as_str(), n.radix()) {
        Ok(number) if number < i128::from(min) => {
            Err(if number < 0 { "must not be negative".to_owned() } else { format!("must be at least {min}") })
        }
        Ok(number) => match u64::try_from(number) {
            Ok(number) if number <= max => Ok(ConfigValue::Int(number)),
            _ => Err(format!("must be at most {max}")),
        },
        Err(_) => Err(format!("must be at most {max}")),
    }
}

fn float(text: &str, min: f64, max: f64) -> Result<ConfigValue, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_nan() => Err("NaN is not a number that anything can be multiplied by".to_owned()),
        Ok(number) if (min..=max).contains(&number) => Ok(ConfigValue::Float(number)),
        _ => Err(format!("must lie between {min} and {max}")),
    }
}

/// Checks the kinds that are strings with a grammar.
fn text_value(kind: &'static ValueKind, text: &str) -> Result<ConfigValue, String> {
    match kind {
        ValueKind::Text => Ok(()),
        ValueKind::Word(words) if words.contains(&text) => Ok(()),
        ValueKind::Word(words) => Err(match nearest(text, words.iter().copied()) {
            Some(near) => format!("`{text}` is not one of {}; did you mean \"{near}\"?", words.join(", ")),
            None => format!("`{text}` is not one of {}", words.join(", ")),
        }),
        ValueKind::Secret => place::secret(text).map(drop),
        ValueKind::Url => url::Base::parse(text).map(drop),
        ValueKind::UrlOrSecret => place::secret(text).map(drop).or_else(|_| url::Base::parse_callback(text).map(drop)),
        ValueKind::Place(prefixes) => place::place(text, prefixes),
        ValueKind::Listen => place::listen(text).map(drop),
        ValueKind::Cidr => place::cidr(text).map(drop),
        ValueKind::Reset => crate::lease::Reset::parse(text).map(drop).map_err(|error| error.to_string()),
        ValueKind::LimitKey => place::limit_key(text).map(drop),
        ValueKind::Inject => place::Inject::parse(text).map(drop),
        ValueKind::Header => place::header(text),
        ValueKind::HeaderValue => place::header_value(text),
        ValueKind::Label => place::label(text),
        ValueKind::Match => super::endpoint::PathPattern::parse(text).map(drop),
        ValueKind::Method => crate::request_method::check(text).map_err(|bad| bad.to_string()),
        kind => Err(format!("expected {}, found a string", expected(kind))),
    }?;
    Ok(ConfigValue::Text(text.to_owned()))
}

fn article(word: &str) -> String {
    let vowel = word.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {word}", if vowel { "an" } else { "a" })
}

/// Describes a kind for error messages.
pub(crate) fn expected(kind: &ValueKind) -> &'static str {
    match kind {
        ValueKind::Duration { .. } => "a duration such as \"250ms\" or \"3m\"",
        ValueKind::Size => "a size such as \"1MiB\"",
        ValueKind::Rate { .. } => "a rate such as \"50/s\"",
        ValueKind::Share => "a share such as \"20%\"",
        ValueKind::Int { .. } => "a whole number",
        ValueKind::Float { .. } => "a number",
        ValueKind::Bool => "true or false",
        ValueKind::Text | ValueKind::HeaderValue | ValueKind::Label => "a string",
        ValueKind::Word(_) => "one of a set of words",
        ValueKind::Secret => "a reference to a secret, \"env:NAME\" or \"file:PATH\"",
        ValueKind::Url | ValueKind::UrlOrSecret => "a URL such as \"https://api.example.com/v1\"",
        ValueKind::Place(_) => "a URL of a store",
        ValueKind::Listen => "an address such as \"127.0.0.1:7329\"",
        ValueKind::Cidr => "a network such as \"10.0.0.0/8\"",
        ValueKind::Reset => "a time and zone such as \"00:00 America/Los_Angeles\"",
        ValueKind::LimitKey => "a limit key such as \"caller\"",
        ValueKind::Inject => "a place for the secret such as \"header:X-Api-Key\"",
        ValueKind::Header => "the name of a header such as \"x-request-timeout-ms\"",
        ValueKind::Method => "a method such as \"GET\"",
        ValueKind::Match => "a method and path such as \"GET /search\"",
        ValueKind::List(_) | ValueKind::OneOrMany(_) => "a list",
        ValueKind::Table(_) | ValueKind::Map(_) | ValueKind::Strings | ValueKind::Counts => "a table",
        ValueKind::Either(plain, _) => expected(plain),
        ValueKind::Tables(_) | ValueKind::Rules(_) => "a list of tables",
    }
}
