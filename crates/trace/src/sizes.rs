//! Sizes of transfers from shapes and element types.

use crate::CollectiveType;
use serde_json::Value;

/// Size of an element whose type is unknown. The type is assumed to be float32.
pub(super) const ASSUMED_ELEMENT_BYTES: u64 = 4;

/// Returns the size of an element by the name of its type. PyTorch uses different names in C++ and in records of
/// transfers (c10/core/ScalarType.h).
pub(super) fn element_bytes(name: &str) -> Option<u64> {
    let name = name.strip_prefix("c10::").unwrap_or(name).to_ascii_lowercase();
    Some(match name.as_str() {
        "unsigned char" | "signed char" | "char" | "byte" | "bool" => 1,
        _ if name.starts_with("float8") => 1,
        "half" | "bfloat16" | "short" | "short int" | "uint16" => 2,
        "float" | "int" | "uint32" | "complexhalf" => 4,
        "double" | "long" | "long int" | "uint64" | "complexfloat" | "complex<float>" => 8,
        "complexdouble" | "complex<double>" => 16,
        _ => return None,
    })
}

/// Returns the total bytes of the tensors among an operator's inputs, and the number of tensors whose type is unknown.
/// Returns `None` if no shapes were recorded.
///
/// # Arguments
/// `skipped` is the number of leading inputs that are output buffers.
pub(super) fn input_bytes(dims: Option<&Value>, types: Option<&Value>, skipped: usize) -> Option<(u64, u64)> {
    let (dims, types) = (dims?.as_array()?, types?.as_array()?);
    let (mut bytes, mut assumed) = (0_u64, 0);
    for (shape, name) in dims.iter().zip(types).skip(skipped) {
        let name = name.as_str().unwrap_or("");
        let known = element_bytes(name);
        // A TensorList has one shape per tensor. In files before PyTorch 2.1 it has no shapes, and must not count as a
        // scalar.
        let is_list = name == "TensorList" && shape.as_array().is_some_and(|parts| parts.iter().any(Value::is_array));
        if known.is_none() && !is_list {
            continue;
        }
        assumed += u64::from(known.is_none());
        bytes = bytes.saturating_add(element_count(shape).saturating_mul(known.unwrap_or(ASSUMED_ELEMENT_BYTES)));
    }
    Some((bytes, assumed))
}

/// Returns whether a collective writes to a separate output buffer.
pub(super) fn has_output(collective: CollectiveType) -> bool {
    use CollectiveType::{AllGather, AllToAll, Gather, ReduceScatter, ReduceScatterBlock, Scatter};
    matches!(collective, AllGather | AllToAll | Gather | ReduceScatter | ReduceScatterBlock | Scatter)
}

/// Returns the number of elements of a shape, or of a list of shapes.
fn element_count(shape: &Value) -> u64 {
    let Some(parts) = shape.as_array() else { return 0 };
    if parts.iter().any(Value::is_array) {
        return parts.iter().map(element_count).fold(0, u64::saturating_add);
    }
    parts.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul)
}
