//! Tables of exact numbers, and their CSV and JSON forms. Python receives the results of runs in such tables.

use gradtide_net::Time;
use gradtide_watch::check_cancelled;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// Named columns of equal length.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name and values of each column. The name ends in the unit.
    pub columns: Vec<(String, Column)>,
}

/// One column.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// Labels. Equal labels share one allocation.
    Text(#[serde(with = "labels")] Vec<Arc<str>>),
    /// Counts, indices and bytes.
    Count(Vec<u64>),
    /// Counts that may be missing or negative.
    Signed(Vec<Option<i64>>),
    /// Times in picoseconds, written as microseconds.
    Time(Vec<i64>),
    /// Times that may be missing.
    MaybeTime(Vec<Option<i64>>),
    /// Ratios. A ratio whose denominator is zero is missing.
    Ratio(Vec<Option<f64>>),
    /// Flags, written as `true` or `false`.
    Flag(Vec<bool>),
}

impl Table {
    /// Creates a table of these columns.
    pub fn new(columns: Vec<(&str, Column)>) -> Self {
        Self { columns: columns.into_iter().map(|(name, column)| (name.into(), column)).collect() }
    }

    /// Appends the rows of `other`. If only one table has a column, rows of the other have no value in it.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        if other.row_count() == 0 {
            return self;
        }
        let (first, second) = (self.row_count(), other.row_count());
        let mut rest = other.columns;
        for (name, column) in &mut self.columns {
            match rest.iter().position(|(also, _)| also == name) {
                Some(place) => column.append(rest.remove(place).1),
                None => column.pad(second),
            }
        }
        for (name, column) in rest {
            let mut padded = column.empty();
            padded.pad(first);
            padded.append(column);
            self.columns.push((name, padded));
        }
        self
    }

    /// Returns the number of rows.
    pub fn row_count(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.row_count())
    }

    /// Returns whether the columns differ in length.
    pub fn is_ragged(&self) -> bool {
        self.columns.iter().any(|(_, column)| column.row_count() != self.row_count())
    }

    /// Returns the table as CSV (RFC 4180) with a header row. Times are in microseconds with all six decimals. Ratios
    /// are written as the shortest decimals that parse to the same numbers.
    pub fn to_csv(&self) -> String {
        let header: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        let mut csv = header.join(",") + "\n";
        for row in 0..self.row_count() {
            check_cancelled();
            for (index, (_, column)) in self.columns.iter().enumerate() {
                if index > 0 {
                    csv.push(',');
                }
                column.write_cell(row, &mut csv);
            }
            csv.push('\n');
        }
        csv
    }
}

/// Serializes labels as the list of distinct names and an index per row. After reading, equal labels therefore share
/// one allocation again.
mod labels {
    use super::{Arc, BTreeMap, Deserialize, Serialize};
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(rows: &[Arc<str>], serializer: S) -> Result<S::Ok, S::Error> {
        let mut names: Vec<&str> = Vec::new();
        let mut index_of: BTreeMap<&str, usize> = BTreeMap::new();
        let indices: Vec<usize> = (rows.iter())
            .map(|label| {
                *index_of.entry(label).or_insert_with(|| {
                    names.push(label);
                    names.len() - 1
                })
            })
            .collect();
        (names, indices).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<str>>, D::Error> {
        let (names, indices) = <(Vec<String>, Vec<usize>)>::deserialize(deserializer)?;
        let names: Vec<Arc<str>> = names.into_iter().map(Into::into).collect();
        let label = |index: usize| names.get(index).cloned().ok_or_else(|| D::Error::custom("a label without a name"));
        indices.into_iter().map(label).collect()
    }
}

impl Column {
    /// Returns an empty column of the same kind.
    fn empty(&self) -> Self {
        match self {
            Self::Text(_) => Self::Text(Vec::new()),
            Self::Count(_) => Self::Count(Vec::new()),
            Self::Signed(_) => Self::Signed(Vec::new()),
            Self::Time(_) => Self::Time(Vec::new()),
            Self::MaybeTime(_) => Self::MaybeTime(Vec::new()),
            Self::Ratio(_) => Self::Ratio(Vec::new()),
            Self::Flag(_) => Self::Flag(Vec::new()),
        }
    }

    /// Returns the column as the kind whose values may be missing, if its kind has such a counterpart.
    fn optional(self) -> Self {
        match self {
            Self::Count(rows) => Self::Signed(rows.into_iter().map(signed).collect()),
            Self::Time(rows) => Self::MaybeTime(rows.into_iter().map(Some).collect()),
            other => other,
        }
    }

    /// Appends the rows of a column of the same kind, or of its counterpart whose values may be missing.
    fn append(&mut self, mut other: Self) {
        if std::mem::discriminant(self) != std::mem::discriminant(&other) {
            *self = std::mem::replace(self, Self::Flag(Vec::new())).optional();
            other = other.optional();
        }
        match (self, other) {
            (Self::Text(rows), Self::Text(more)) => rows.extend(more),
            (Self::Count(rows), Self::Count(more)) => rows.extend(more),
            (Self::Signed(rows), Self::Signed(more)) => rows.extend(more),
            (Self::Time(rows), Self::Time(more)) => rows.extend(more),
            (Self::MaybeTime(rows), Self::MaybeTime(more)) => rows.extend(more),
            (Self::Ratio(rows), Self::Ratio(more)) => rows.extend(more),
            (Self::Flag(rows), Self::Flag(more)) => rows.extend(more),
            _ => unreachable!("columns of one name are of one kind"),
        }
    }

    /// Appends `count` rows without a value. If necessary, the column becomes one whose values may be missing.
    fn pad(&mut self, count: usize) {
        *self = std::mem::replace(self, Self::Flag(Vec::new())).optional();
        match self {
            Self::Text(rows) => rows.extend(std::iter::repeat_n(Arc::from(""), count)),
            Self::Signed(rows) | Self::MaybeTime(rows) => rows.extend(std::iter::repeat_n(None, count)),
            Self::Count(_) | Self::Time(_) => unreachable!("converted above"),
            Self::Ratio(rows) => rows.extend(std::iter::repeat_n(None, count)),
            Self::Flag(rows) => rows.extend(std::iter::repeat_n(false, count)),
        }
    }

    fn row_count(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Count(values) => values.len(),
            Self::Signed(values) => values.len(),
            Self::Time(values) => values.len(),
            Self::MaybeTime(values) => values.len(),
            Self::Ratio(values) => values.len(),
            Self::Flag(values) => values.len(),
        }
    }

    fn write_cell(&self, row: usize, csv: &mut String) {
        // Writing to a String cannot fail.
        let _ = match self {
            Self::Text(values) => write!(csv, "{}", quoted(&values[row])),
            Self::Count(values) => write!(csv, "{}", values[row]),
            Self::Flag(values) => write!(csv, "{}", values[row]),
            Self::Signed(values) => values[row].map_or(Ok(()), |value| write!(csv, "{value}")),
            Self::Ratio(values) => values[row].map_or(Ok(()), |value| write!(csv, "{value}")),
            Self::Time(values) => write_time(values[row], csv),
            Self::MaybeTime(values) => values[row].map_or(Ok(()), |ps| write_time(ps, csv)),
        };
    }
}

/// Converts a count for a column in which values may be missing.
fn signed(count: u64) -> Option<i64> {
    Some(i64::try_from(count).unwrap_or(i64::MAX))
}

fn write_time(ps: i64, csv: &mut String) -> std::fmt::Result {
    let sign = if ps < 0 { "-" } else { "" };
    write!(csv, "{sign}{}", Time::from_ps(ps.unsigned_abs()))
}

fn quoted(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}
