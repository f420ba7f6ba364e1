//! Converts tables of the core to numpy arrays, CSV text and Arrow streams.

use crate::watch::watched;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray, UInt64Array,
};
use gradtide_table::Column;
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use std::sync::Arc;

/// Named columns of equal length. Arrays contain times as float64 microseconds, the CSV every picosecond.
#[pyclass(frozen, name = "Table", module = "gradtide._core")]
pub struct PyTable(gradtide_table::Table);

impl PyTable {
    pub fn new(table: gradtide_table::Table) -> Self {
        Self(table)
    }

    /// Returns the underlying table of the core.
    pub fn core(&self) -> &gradtide_table::Table {
        &self.0
    }

    fn batch(&self) -> Result<RecordBatch, arrow_schema::ArrowError> {
        RecordBatch::try_from_iter(self.0.columns.iter().map(|(name, column)| (name, to_arrow(column))))
    }
}

#[pymethods]
impl PyTable {
    /// Builds a table from columns of equal length: lists of str, of bool, of int, or of float and None.
    #[staticmethod]
    fn from_columns(columns: Vec<(String, Values)>) -> PyResult<Self> {
        let columns: Vec<(String, Column)> = columns.into_iter().map(|(name, values)| (name, values.into())).collect();
        let table = gradtide_table::Table { columns };
        if table.is_ragged() { Err(PyValueError::new_err("columns differ in length")) } else { Ok(Self(table)) }
    }

    /// Names of the columns, each with its unit at the end.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.0.columns.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.row_count()
    }

    /// Returns one column. Text is a list of str; missing numbers are NaN.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (_, column) = self.0.columns.iter().find(|(other, _)| other == name).ok_or_else(|| {
            PyKeyError::new_err(format!("no column {name:?}; there are {}", self.columns().join(", ")))
        })?;
        Ok(match column {
            Column::Text(values) => PyList::new(py, values.iter().map(AsRef::<str>::as_ref))?.into_any(),
            Column::Count(values) => PyArray1::from_slice(py, values).into_any(),
            Column::Flag(values) => PyArray1::from_slice(py, values).into_any(),
            Column::Signed(values) => {
                let values = values.iter().map(|value| value.map_or(f64::NAN, |value| value as f64));
                PyArray1::from_iter(py, values).into_any()
            }
            Column::Time(values) => PyArray1::from_iter(py, values.iter().map(|&ps| microseconds(ps))).into_any(),
            Column::MaybeTime(values) => {
                PyArray1::from_iter(py, values.iter().map(|ps| ps.map_or(f64::NAN, microseconds))).into_any()
            }
            Column::Ratio(values) => {
                PyArray1::from_iter(py, values.iter().map(|value| value.unwrap_or(f64::NAN))).into_any()
            }
        })
    }

    /// Returns the table as CSV with a header row.
    fn to_csv(&self, py: Python<'_>) -> PyResult<String> {
        watched(py, || self.0.to_csv())
    }

    /// Returns an Arrow stream by the PyCapsule interface, which polars, pyarrow and pandas read.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // By the protocol, a producer may ignore a requested schema that it does not offer.
        let _ = requested_schema;
        let batch = self.batch().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let schema = batch.schema();
        let stream = FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new([Ok(batch)], schema)));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// A column as a Python list.
#[derive(FromPyObject)]
enum Values {
    Text(Vec<String>),
    // Bools are tried before numbers, because a Python bool is also an int.
    Flag(Vec<bool>),
    Count(Vec<u64>),
    Ratio(Vec<Option<f64>>),
}

impl From<Values> for Column {
    fn from(values: Values) -> Self {
        match values {
            Values::Text(values) => Self::Text(values.into_iter().map(Into::into).collect()),
            Values::Flag(values) => Self::Flag(values),
            Values::Count(values) => Self::Count(values),
            Values::Ratio(values) => Self::Ratio(values),
        }
    }
}

fn to_arrow(column: &Column) -> ArrayRef {
    match column {
        Column::Text(values) => Arc::new(StringArray::from_iter_values(values)),
        Column::Count(values) => Arc::new(UInt64Array::from_iter_values(values.iter().copied())),
        Column::Flag(values) => Arc::new(BooleanArray::from_iter(values.iter().copied().map(Some))),
        Column::Signed(values) => Arc::new(Int64Array::from_iter(values.iter().copied())),
        Column::Time(values) => Arc::new(Float64Array::from_iter_values(values.iter().map(|&ps| microseconds(ps)))),
        Column::MaybeTime(values) => Arc::new(Float64Array::from_iter(values.iter().map(|ps| ps.map(microseconds)))),
        Column::Ratio(values) => Arc::new(Float64Array::from_iter(values.iter().copied())),
    }
}

fn microseconds(ps: i64) -> f64 {
    ps as f64 / 1e6
}
