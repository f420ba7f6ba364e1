//! Reads an execution trace that arrives in pieces.

use gradtide_trace::execution_trace::ExecutionTraceReader;
use gradtide_trace::{RankTrace, TraceError};

pub fn read(text: &str, size: usize) -> Result<RankTrace, TraceError> {
    let mut reader = ExecutionTraceReader::default();
    text.as_bytes().chunks(size).try_for_each(|chunk| reader.feed(chunk))?;
    reader.finish()
}
