//! `--assert 'recovery_s < 10 where policy=succ10,rho=0.8'`: a threshold for every row, or for the selected rows.

use std::fmt;
use std::str::FromStr;

use super::report::{Column, ReportCell, SimReport};
use crate::exit::CommandError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
    Differs,
}

impl Op {
    /// Longer spellings first, so that `<=` is not read as `<`.
    const SPELLINGS: [(&'static str, Self); 7] = [
        ("<=", Self::AtMost),
        (">=", Self::AtLeast),
        ("==", Self::Equal),
        ("!=", Self::Differs),
        ("<", Self::Less),
        (">", Self::More),
        ("=", Self::Equal),
    ];

    #[expect(clippy::float_cmp, reason = "an exact comparison is what `==` asks for")]
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::More => left > right,
            Self::AtLeast => left >= right,
            Self::Equal => left == right,
            Self::Differs => left != right,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assertion {
    text: String,
    column: String,
    op: Op,
    bound: f64,
    filters: Vec<(String, String)>,
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const GRAMMAR: &str = "expected `COLUMN OP NUMBER [where COLUMN=VALUE,…]`, with OP one of < <= > >= == !=";
        let (condition, filter) = text.split_once(" where ").unwrap_or((text, ""));
        let at = condition.find(['<', '>', '=', '!']).ok_or(GRAMMAR)?;
        let (column, rest) = condition.split_at(at);
        let (spelling, op) = Op::SPELLINGS.into_iter().find(|(spelling, _)| rest.starts_with(spelling)).ok_or(GRAMMAR)?;
        let number = rest[spelling.len()..].trim();
        let bound = number.parse().map_err(|_| format!("`{number}` is not a number; {GRAMMAR}"))?;
        let filters = filter.split(',').map(str::trim).filter(|part| !part.is_empty());
        let filters = filters.map(|part| part.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())));
        let filters = filters.collect::<Option<Vec<_>>>().ok_or(GRAMMAR)?;
        Ok(Self { text: text.to_owned(), column: column.trim().to_owned(), op, bound, filters })
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Assertion {
    /// Checks the columns before anything is simulated: a misspelt one must not cost a minute.
    pub(super) fn check_columns(&self, columns: &[Column]) -> anyhow::Result<()> {
        let known = |name: &str| columns.iter().find(|column| column.name == name);
        let names = || columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
        for name in std::iter::once(&self.column).chain(self.filters.iter().map(|(name, _)| name)) {
            CommandError::require(known(name).is_some(), || format!("`{name}` in `{self}` is not a column; columns are {}", names()))?;
        }
        let is_number = known(&self.column).is_some_and(|column| column.digits.is_some());
        CommandError::require(is_number, || format!("`{}` in `{self}` is not a number and cannot be compared", self.column))?;
        Ok(())
    }

    /// The rows that break it, each as one line, and the number of rows checked.
    pub(super) fn failures(&self, report: &SimReport) -> anyhow::Result<(Vec<String>, usize)> {
        let chosen: Vec<&Vec<ReportCell>> =
            report.rows.iter().filter(|row| self.filters.iter().all(|filter| matches(report.columns, row, filter))).collect();
        CommandError::require(!chosen.is_empty(), || format!("no row matches `{self}`, so it asserts nothing"))?;
        let broken = chosen.iter().filter(|row| !self.holds(report.columns, row));
        Ok((broken.map(|row| describe(report.columns, row)).collect(), chosen.len()))
    }

    fn holds(&self, columns: &[Column], row: &[ReportCell]) -> bool {
        let cell = columns.iter().zip(row).find(|(column, _)| column.name == self.column).map(|(_, cell)| cell);
        match cell {
            Some(ReportCell::Number(number)) => self.op.holds(*number, self.bound),
            Some(ReportCell::Never) => self.op.holds(f64::INFINITY, self.bound),
            Some(ReportCell::Text(_)) | None => false,
        }
    }
}

/// Compares numbers by value: `rho=0.80` means `rho=0.8`.
fn matches(columns: &[Column], row: &[ReportCell], (name, value): &(String, String)) -> bool {
    let cell = columns.iter().zip(row).find(|(column, _)| column.name == name).map(|(_, cell)| cell);
    match cell {
        Some(ReportCell::Text(text)) => text == value,
        Some(ReportCell::Number(number)) => value.parse::<f64>().is_ok_and(|value| (value - number).abs() < 1e-9),
        Some(ReportCell::Never) => value.is_empty(),
        None => false,
    }
}

fn describe(columns: &[Column], row: &[ReportCell]) -> String {
    let show = |(column, cell): (&Column, &ReportCell)| {
        let text = if *cell == ReportCell::Never { "never".to_owned() } else { column.show(cell) };
        format!("{}={text}", column.name)
    };
    columns.iter().zip(row).map(show).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_takes_every_operator_and_a_filter() {
        let assertion: Assertion = "recovery_s<=10.5 where policy=a/b, rho=0.8".parse().unwrap();
        assert_eq!((assertion.column.as_str(), assertion.op, assertion.bound), ("recovery_s", Op::AtMost, 10.5));
        assert_eq!(assertion.filters, [("policy".to_owned(), "a/b".to_owned()), ("rho".to_owned(), "0.8".to_owned())]);
        for (text, op) in [("a < 1", Op::Less), ("a >1", Op::More), ("a>=1", Op::AtLeast), ("a = 1", Op::Equal), ("a != 1", Op::Differs)] {
            assert_eq!(text.parse::<Assertion>().unwrap().op, op, "{text}");
        }
    }

    #[test]
    fn what_is_not_an_assertion_says_what_one_is() {
        for text in ["", "recovery_s", "recovery_s < fast", "a < 1 where policy", "a ! 1"] {
            assert!(text.parse::<Assertion>().unwrap_err().contains("COLUMN OP NUMBER"), "{text}");
        }
    }

    #[test]
    fn never_is_later_than_any_number() {
        let columns = [Column::number("recovery_s", 1)];
        let holds = |text: &str| text.parse::<Assertion>().unwrap().holds(&columns, &[ReportCell::Never]);
        assert!(!holds("recovery_s < 1e9"));
        assert!(holds("recovery_s > 1e9"));
    }

    #[test]
    fn an_unknown_column_lists_the_columns() {
        let columns = [Column::text("policy"), Column::number("recovery_s", 1)];
        let error = |text: &str| text.parse::<Assertion>().unwrap().check_columns(&columns).unwrap_err().to_string();
        assert!(error("recovery < 1").contains("columns are policy, recovery_s"));
        assert!(error("recovery_s < 1 where rho=1").contains("`rho`"));
        assert!(error("policy < 1").contains("not a number"));
    }
}
