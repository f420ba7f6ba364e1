//! Traces of other tools: the result of reading does not depend on the pieces in which a file arrives, and a written
//! trace is read back unchanged.

use gradtide_trace::{RankTrace, TraceError, chakra, dag, execution_trace, kineto, step, tables};
use std::sync::Arc;

type Read = Result<RankTrace, TraceError>;

fn read_kineto(data: &[u8], size: usize) -> Read {
    let mut reader = kineto::KinetoReader::default();
    data.chunks(size).try_for_each(|chunk| reader.feed(chunk))?;
    reader.finish()
}

fn read_execution_trace(data: &[u8], size: usize) -> Read {
    let mut reader = execution_trace::ExecutionTraceReader::default();
    data.chunks(size).try_for_each(|chunk| reader.feed(chunk))?;
    reader.finish()
}

fn read_chakra(data: &[u8], size: usize) -> Read {
    let mut reader = chakra::ChakraReader::default();
    data.chunks(size).try_for_each(|chunk| reader.feed(chunk))?;
    reader.finish()
}

fn read_dag(text: &[u8]) -> Option<Read> {
    serde_json::from_slice(text).ok().map(|document| dag::read(&document))
}

/// A file of PyTorch's profiler.
pub fn kineto(data: &[u8]) {
    read_in_pieces(read_kineto, data);
}

/// A trace of PyTorch's ExecutionTraceObserver.
pub fn execution_trace(data: &[u8]) {
    read_in_pieces(read_execution_trace, data);
}

/// A Chakra execution trace.
pub fn chakra(data: &[u8]) {
    read_in_pieces(read_chakra, data);
}

/// An op DAG that `to_dag` wrote.
pub fn dag(data: &[u8]) {
    if let Some(Ok(trace)) = read_dag(data) {
        check(trace);
    }
}

fn read_in_pieces(read: fn(&[u8], usize) -> Read, data: &[u8]) {
    let whole = read(data, data.len().max(1));
    for size in [1, 7] {
        assert_eq!(read(data, size), whole, "in pieces of {size} bytes");
    }
    if let Ok(trace) = whole {
        check(trace);
    }
}

/// Checks the conversions and the analysis of a trace.
fn check(trace: RankTrace) {
    // The first conversion may lose information that the format cannot represent. Later conversions lose nothing.
    let as_chakra = |trace: &RankTrace| {
        let file = chakra::write(trace, "0.0.4");
        read_chakra(&file, file.len()).expect("our own Chakra file is one").ops
    };
    let once = as_chakra(&trace);
    let again = RankTrace { ops: once.clone(), ..RankTrace::default() };
    assert_eq!(as_chakra(&again), once, "a Chakra file is the trace again");
    let as_dag = |trace: &RankTrace| {
        let text = serde_json::to_vec(&dag::write(trace, false)).expect("a document is JSON");
        read_dag(&text).expect("our own document is one").expect("our own DAG is one").ops
    };
    let once = as_dag(&trace);
    let again = RankTrace { ops: once.clone(), ..RankTrace::default() };
    assert_eq!(as_dag(&again), once, "a DAG is the trace again");
    assert_eq!(once.len(), trace.ops.len());

    let waterfall = tables::waterfall(&trace);
    let parts = [waterfall.exposed_ns, waterfall.compute_ns, waterfall.idle_ns];
    assert_eq!(parts.iter().sum::<u64>(), waterfall.span_ns, "{waterfall:?}");
    assert!(waterfall.overlapped_ns <= waterfall.compute_ns, "{waterfall:?}");
    let ranks = [(0, Arc::new(trace))];
    for table in [tables::ranks(&ranks), tables::ops(&ranks), tables::collectives(&ranks)] {
        assert!(!table.is_ragged());
        table.to_csv();
    }
    let steps = step::steps(&ranks);
    serde_json::to_string(&steps).expect("steps are JSON");
    for step in steps.steps.iter().take(3) {
        serde_json::to_string(&step::cut(&ranks, step, 300)).expect("a step is JSON");
    }
}
