//! A scenario's results, independent of their presentation: rows under named columns, time series, a view for people. CSV and JSON are both
//! written from here, so the two cannot differ.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::svg::Figure;
use super::table::TextTable;

/// A column of the CSV form; `--assert` and `where` use these names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Decimals; `None` for text.
    pub(super) digits: Option<usize>,
}

impl Column {
    pub(super) const fn text(name: &'static str) -> Self {
        Self { name, digits: None }
    }

    pub(super) const fn number(name: &'static str, digits: usize) -> Self {
        Self { name, digits: Some(digits) }
    }

    pub(super) fn show(&self, cell: &ReportCell) -> String {
        match cell {
            ReportCell::Text(text) => text.clone(),
            ReportCell::Number(number) => format!("{number:.*}", self.digits.unwrap_or(0)),
            ReportCell::Never => String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReportCell {
    Text(String),
    Number(f64),
    /// It did not happen: blank in CSV, null in JSON, later than any number to an assertion.
    Never,
}

/// Values at even steps, with the labels that distinguish the series.
#[derive(Clone, Debug)]
pub(super) struct ReportSeries {
    pub(super) labels: Vec<(&'static str, ReportCell)>,
    pub(super) name: &'static str,
    pub(super) x: &'static str,
    pub(super) start: f64,
    pub(super) step: f64,
    pub(super) values: Vec<f64>,
}

#[derive(Debug)]
pub(super) struct SimReport {
    pub(super) scenario: &'static str,
    pub(super) seed: u64,
    pub(super) runs: u32,
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<ReportCell>>,
    pub(super) series: Vec<ReportSeries>,
    pub(super) table: TextTable,
    /// `None` without a chart.
    pub(super) figure: Option<Figure>,
    /// Replaces the rows in CSV if those are only a summary.
    pub(super) detail: Option<Detail>,
    /// Remarks about the input.
    pub(super) notes: Vec<String>,
    /// One sentence about the results.
    pub(super) closing: String,
}

#[derive(Debug)]
pub(super) struct Detail {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<ReportCell>>,
}

impl SimReport {
    pub(super) fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let (columns, rows) = self.detail.as_ref().map_or((self.columns, &self.rows), |detail| (detail.columns, &detail.rows));
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        writeln!(out, "{}", names.join(","))?;
        for row in rows {
            let cells: Vec<String> = columns.iter().zip(row).map(|(column, cell)| quoted(column.show(cell))).collect();
            writeln!(out, "{}", cells.join(","))?;
        }
        Ok(())
    }

    pub(super) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows: Vec<Value> = self.rows.iter().map(|row| self.json_row(row)).collect();
        let series: Vec<Value> = self.series.iter().map(ReportSeries::json).collect();
        let mut document = json!({
            "scenario": self.scenario,
            "seed": self.seed,
            "runs": self.runs,
            "rows": rows,
            "series": series,
            "summary": self.closing,
        });
        if let (false, Some(document)) = (self.notes.is_empty(), document.as_object_mut()) {
            document.insert("notes".to_owned(), json!(self.notes));
        }
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    fn json_row(&self, row: &[ReportCell]) -> Value {
        let fields = self.columns.iter().zip(row).map(|(column, cell)| (column.name.to_owned(), cell.json()));
        Value::Object(fields.collect())
    }
}

impl ReportCell {
    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number) => json!(number),
            Self::Never => Value::Null,
        }
    }
}

impl ReportSeries {
    fn json(&self) -> Value {
        let mut object = Map::new();
        for (label, value) in &self.labels {
            object.insert((*label).to_owned(), value.json());
        }
        let fields = [
            ("name", json!(self.name)),
            ("x", json!(self.x)),
            ("start", json!(self.start)),
            ("step", json!(self.step)),
            ("values", json!(self.values)),
        ];
        object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        Value::Object(object)
    }
}

/// Quotes a value for CSV (RFC 4180): policy names come from configuration files and may contain a comma.
fn quoted(text: String) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
