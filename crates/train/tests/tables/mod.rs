//! Columns of a result's tables, as whole numbers.

use gradtide_table::{Column, Table};

/// Returns a column as integers: counts unchanged, times in picoseconds, -1 for a missing value, and for
/// a text 1 if it is "push", else 0.
pub fn column(table: &Table, name: &str) -> Vec<i64> {
    let (_, column) = table.columns.iter().find(|(own, _)| own == name).expect("a column");
    match column {
        Column::Count(values) => values.iter().map(|&value| value as i64).collect(),
        Column::Time(values) => values.clone(),
        Column::MaybeTime(values) | Column::Signed(values) => values.iter().map(|value| value.unwrap_or(-1)).collect(),
        Column::Text(values) => values.iter().map(|value| i64::from(&**value == "push")).collect(),
        _ => panic!("{name} is no number"),
    }
}
