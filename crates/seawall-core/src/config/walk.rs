//! From TOML text to checked values: every key is looked up in the shape, every value parsed by its kind,
//! and every problem is collected rather than stopping at the first.

use super::node::{Layer, Node, Origin, Tree, Value};
use super::problem::Problem;
use super::shape::{Key, Kind, Table};
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
    pub layer: Layer,
    pub partial: bool,
    pub problems: Vec<Problem>,
    /// Where each line after the first begins: counting anew for every value makes large files slow.
    lines: Vec<usize>,
}

impl<'t> Walker<'t> {
    pub(crate) fn new(text: &'t str, layer: Layer, partial: bool) -> Self {
        let lines = text.match_indices('\n').map(|(newline, _)| newline + 1).collect();
        Self { text, layer, partial, problems: Vec::new(), lines }
    }

    /// The document's tree; whatever is wrong is in `problems`.
    pub(crate) fn document(&mut self, shape: &'static Table) -> Tree {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            self.problems.push(Problem::new(span, "", format!("not valid TOML: {}", error.message())));
        }
        if !self.problems.is_empty() {
            return Tree::default();
        }
        let span = document.span();
        self.table("", shape, document.get_ref(), &span)
    }

    fn table(&mut self, path: &str, shape: &'static Table, table: &DeTable<'_>, span: &Range<usize>) -> Tree {
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
                self.problems.push(Problem::new(
                    span.clone(),
                    join(path, key.name),
                    format!("missing: {} needs `{}` ({})", shape.what, key.name, key.doc),
                ));
            }
        }
        tree
    }

    fn unknown(&mut self, path: &str, name: &Spanned<std::borrow::Cow<'_, str>>, shape: &'static Table) {
        let mut problem = Problem::new(name.span(), path, format!("{} has no key `{}`", shape.what, name.get_ref()));
        problem = match nearest(name.get_ref(), shape.iter().map(|key| key.name)) {
            Some(near) => problem.help(format!("did you mean `{near}`?")),
            None => problem.help(format!("its keys are {}", shape.iter().map(|key| key.name).collect::<Vec<_>>().join(", "))),
        };
        self.problems.push(problem);
    }

    fn node(&self, value: Value, span: &Range<usize>) -> Node {
        let line = self.lines.partition_point(|start| *start <= span.start) + 1;
        Node { value, origin: Origin { layer: self.layer.clone(), line, span: span.clone() } }
    }

    fn value(&mut self, path: &str, key: &'static Key, value: &Spanned<DeValue<'_>>) -> Option<Node> {
        self.kind(path, &key.kind, value)
    }

    fn kind(&mut self, path: &str, kind: &'static Kind, value: &Spanned<DeValue<'_>>) -> Option<Node> {
        let span = value.span();
        let parsed = match (kind, value.get_ref()) {
            (Kind::Table(shape), DeValue::Table(table)) => Ok(Value::Table(self.table(path, shape, table, &span))),
            (Kind::Map(shape), DeValue::Table(table)) => Ok(Value::Table(self.map(path, shape, table))),
            (Kind::Tables(shape), DeValue::Array(items)) => Ok(Value::List(self.tables(path, shape, items.iter()))),
            (Kind::Rules(_), DeValue::Array(items)) => Ok(Value::Rules(self.rules(path, items.iter()))),
            (Kind::List(inner) | Kind::OneOrMany(inner), DeValue::Array(items)) => {
                let nodes = items.iter().enumerate().filter_map(|(i, item)| self.kind(&format!("{path}[{i}]"), inner, item)).collect();
                Ok(Value::List(nodes))
            }
            (Kind::OneOrMany(inner), _) => Ok(Value::List(self.kind(path, inner, value).into_iter().collect())),
            (Kind::Strings, DeValue::Table(table)) => Ok(Value::Table(self.strings(path, table))),
            (Kind::Counts, DeValue::Table(table)) => Ok(Value::Table(self.counts(path, table))),
            (Kind::Either(_, inner), DeValue::Table(_)) | (Kind::Either(inner, _), _) => return self.kind(path, inner, value),
            (kind, scalar) => leaf(kind, scalar),
        };
        match parsed {
            Ok(value) => Some(self.node(value, &span)),
            Err(message) => {
                self.problems.push(Problem::new(span, path, message));
                None
            }
        }
    }

    fn map(&mut self, path: &str, shape: &'static Table, table: &DeTable<'_>) -> Tree {
        let mut tree = Tree::default();
        for (name, value) in table {
            let here = join(path, name.get_ref());
            if let Some(why) = bad_name(name.get_ref()) {
                self.problems.push(Problem::new(name.span(), &here, why));
            }
            let DeValue::Table(inner) = value.get_ref() else {
                self.problems.push(Problem::new(value.span(), &here, format!("expected a table: {}", shape.what)));
                continue;
            };
            let inner = self.table(&here, shape, inner, &name.span());
            let node = self.node(Value::Table(inner), &name.span());
            tree.0.insert(name.get_ref().to_string(), node);
        }
        tree
    }

    fn tables<'v>(&mut self, path: &str, shape: &'static Table, items: impl Iterator<Item = &'v Spanned<DeValue<'v>>>) -> Vec<Node> {
        let mut nodes = Vec::new();
        for (i, item) in items.enumerate() {
            let here = format!("{path}[{i}]");
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(Problem::new(item.span(), here, format!("expected a table: {}", shape.what)));
                continue;
            };
            let tree = self.table(&here, shape, table, &item.span());
            nodes.push(self.node(Value::Table(tree), &item.span()));
        }
        nodes
    }

    fn rules<'v>(&mut self, path: &str, items: impl Iterator<Item = &'v Spanned<DeValue<'v>>>) -> Vec<Arc<classify::Rule>> {
        let source = match &self.layer {
            Layer::BuiltIn => classify::RuleSource::Generic,
            Layer::Profile(_) => classify::RuleSource::Profile,
            Layer::Preset(name) if &**name == "generic" => classify::RuleSource::Generic,
            Layer::Preset(_) => classify::RuleSource::Preset,
            Layer::File(_) if path.contains(".endpoints[") => classify::RuleSource::Endpoint,
            Layer::File(_) => classify::RuleSource::Upstream,
        };
        let mut rules = Vec::new();
        for (i, item) in items.enumerate() {
            let here = format!("{path}[{i}]");
            let DeValue::Table(table) = item.get_ref() else {
                self.problems.push(Problem::new(item.span(), here, "expected a table: a classify rule".to_owned()));
                continue;
            };
            match classify::parse::rule(table, item.span(), source) {
                Ok(rule) => rules.push(Arc::new(rule)),
                Err(found) => self.problems.extend(found.0.into_iter().map(|(span, message)| Problem::new(span, here.clone(), message))),
            }
        }
        rules
    }

    fn strings(&mut self, path: &str, table: &DeTable<'_>) -> Tree {
        let mut tree = Tree::default();
        for (name, value) in table {
            match value.get_ref() {
                DeValue::String(text) => {
                    let node = self.node(Value::Text(text.to_string()), &value.span());
                    tree.0.insert(name.get_ref().to_string(), node);
                }
                _ => self.problems.push(Problem::new(value.span(), join(path, name.get_ref()), "expected a string")),
            }
        }
        tree
    }

    fn counts(&mut self, path: &str, table: &DeTable<'_>) -> Tree {
        const COUNT: Kind = Kind::Int { min: 0, max: 1_000_000 };
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

/// Names become path segments, metric labels and log fields.
fn bad_name(name: &str) -> Option<String> {
    let fine = !name.is_empty() && name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    (!fine || name == "-" || name.starts_with('.'))
        .then(|| format!("`{name}` cannot be a name: use letters, digits, `-`, `_` and `.`, at most 64"))
}

/// A single value by its kind.
fn leaf(kind: &'static Kind, value: &DeValue<'_>) -> Result<Value, String> {
    match (kind, value) {
        (Kind::Duration { zero }, DeValue::String(text)) => match units::duration(text)? {
            length if length.0 == 0 && !zero => Err("must be above zero".to_owned()),
            length => Ok(Value::Duration(length)),
        },
        (Kind::Rate { zero }, DeValue::String(text)) => match units::rate(text)? {
            rate if rate.count == 0 && !zero => Err("must be above zero: this would refuse everything".to_owned()),
            rate => Ok(Value::Rate(rate)),
        },
        (Kind::Size, DeValue::String(text)) => units::size(text).map(Value::Size),
        (Kind::Share, DeValue::String(text)) => units::share(text).map(Value::Share),
        (Kind::Duration { .. }, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}s\" or \"{n}ms\"")),
        (Kind::Size, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}KiB\" or \"{n}MiB\"")),
        (Kind::Rate { .. }, DeValue::Integer(n)) => Err(format!("missing unit: write \"{n}/s\" or \"{n}/m\"")),
        (Kind::Share, DeValue::Integer(n)) => Err(format!("missing unit: shares are written as \"{n}%\"")),
        (Kind::Share, DeValue::Float(n)) => Err(format!("missing unit: shares are written in percent, as in \"20%\", not {n}")),
        (Kind::Int { min, max }, DeValue::Integer(n)) => integer(n, *min, *max),
        (Kind::Float { min, max }, DeValue::Float(n)) => float(n.as_str(), *min, *max),
        (Kind::Float { min, max }, DeValue::Integer(n)) => float(n.as_str(), *min, *max),
        (Kind::Bool, DeValue::Boolean(yes)) => Ok(Value::Bool(*yes)),
        (kind, DeValue::String(text)) => text_value(kind, text),
        (kind, other) => Err(format!("expected {}, found {}", expected(kind), article(other.type_str()))),
    }
}

fn integer(n: &toml::de::DeInteger<'_>, min: u64, max: u64) -> Result<Value, String> {
    match i128::from_str_radix(n.as_str(), n.radix()) {
        Ok(number) if number < i128::from(min) => {
            Err(if number < 0 { "must not be negative".to_owned() } else { format!("must be at least {min}") })
        }
        Ok(number) => match u64::try_from(number) {
            Ok(number) if number <= max => Ok(Value::Int(number)),
            _ => Err(format!("must be at most {max}")),
        },
        Err(_) => Err(format!("must be at most {max}")),
    }
}

fn float(text: &str, min: f64, max: f64) -> Result<Value, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_nan() => Err("NaN is not a number that anything can be multiplied by".to_owned()),
        Ok(number) if (min..=max).contains(&number) => Ok(Value::Float(number)),
        _ => Err(format!("must lie between {min} and {max}")),
    }
}

/// The kinds that are strings with a grammar.
fn text_value(kind: &'static Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Text => Ok(()),
        Kind::Word(words) if words.contains(&text) => Ok(()),
        Kind::Word(words) => Err(match nearest(text, words.iter().copied()) {
            Some(near) => format!("`{text}` is not one of {}; did you mean \"{near}\"?", words.join(", ")),
            None => format!("`{text}` is not one of {}", words.join(", ")),
        }),
        Kind::Secret => place::secret(text).map(drop),
        Kind::Url => url::Base::parse(text).map(drop),
        Kind::UrlOrSecret => place::secret(text).map(drop).or_else(|_| url::Base::parse_callback(text).map(drop)),
        Kind::Place(prefixes) => place::place(text, prefixes),
        Kind::Listen => place::listen(text).map(drop),
        Kind::Cidr => place::cidr(text).map(drop),
        Kind::Reset => crate::lease::Reset::parse(text).map(drop).map_err(|error| error.to_string()),
        Kind::LimitKey => place::limit_key(text).map(drop),
        Kind::Inject => place::Inject::parse(text).map(drop),
        Kind::Header => place::header(text),
        Kind::HeaderValue => place::header_value(text),
        Kind::Label => place::label(text),
        Kind::Match => super::endpoint::Match::parse(text).map(drop),
        Kind::Method => crate::request_method::check(text).map_err(|bad| bad.to_string()),
        kind => Err(format!("expected {}, found a string", expected(kind))),
    }?;
    Ok(Value::Text(text.to_owned()))
}

fn article(word: &str) -> String {
    let vowel = word.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {word}", if vowel { "an" } else { "a" })
}

/// What a kind wants, in words, for messages.
pub(crate) fn expected(kind: &Kind) -> &'static str {
    match kind {
        Kind::Duration { .. } => "a duration such as \"250ms\" or \"3m\"",
        Kind::Size => "a size such as \"1MiB\"",
        Kind::Rate { .. } => "a rate such as \"50/s\"",
        Kind::Share => "a share such as \"20%\"",
        Kind::Int { .. } => "a whole number",
        Kind::Float { .. } => "a number",
        Kind::Bool => "true or false",
        Kind::Text | Kind::HeaderValue | Kind::Label => "a string",
        Kind::Word(_) => "one of a set of words",
        Kind::Secret => "a reference to a secret, \"env:NAME\" or \"file:PATH\"",
        Kind::Url | Kind::UrlOrSecret => "a URL such as \"https://api.example.com/v1\"",
        Kind::Place(_) => "a URL of a store",
        Kind::Listen => "an address such as \"127.0.0.1:7329\"",
        Kind::Cidr => "a network such as \"10.0.0.0/8\"",
        Kind::Reset => "a time and zone such as \"00:00 America/Los_Angeles\"",
        Kind::LimitKey => "a limit key such as \"caller\"",
        Kind::Inject => "a place for the secret such as \"header:X-Api-Key\"",
        Kind::Header => "the name of a header such as \"x-request-timeout-ms\"",
        Kind::Method => "a method such as \"GET\"",
        Kind::Match => "a method and path such as \"GET /search\"",
        Kind::List(_) | Kind::OneOrMany(_) => "a list",
        Kind::Table(_) | Kind::Map(_) | Kind::Strings | Kind::Counts => "a table",
        Kind::Either(plain, _) => expected(plain),
        Kind::Tables(_) | Kind::Rules(_) => "a list of tables",
    }
}
