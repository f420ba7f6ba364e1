//! Fuzz targets. Each target takes any bytes, and panics if the core violates an invariant.
//!
//! `make fuzz` runs the targets in libFuzzer (`libfuzzer/`), guided by coverage. `cargo test` runs them on the files of
//! `seeds/` and some mutants of each, so that a broken target is noticed.

pub mod collectives;
pub mod json;
pub mod maxmin;
pub mod orders;
pub mod runs;
pub mod traces;

/// A target, named like its folder in `seeds/`.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target.
    pub name: &'static str,
    /// Runs the core on any bytes, and checks the result.
    pub check: fn(&[u8]),
    /// Whether the inputs are JSON, and are mutated as JSON.
    pub is_json: bool,
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target { name: "kineto", check: traces::kineto, is_json: true },
    Target { name: "execution_trace", check: traces::execution_trace, is_json: true },
    Target { name: "chakra", check: traces::chakra, is_json: false },
    Target { name: "trace_dag", check: traces::dag, is_json: true },
    Target { name: "order", check: orders::order, is_json: true },
    Target { name: "run", check: runs::run, is_json: true },
    Target { name: "collective", check: collectives::collective, is_json: false },
    Target { name: "maxmin", check: maxmin::maxmin, is_json: false },
];

/// Returns the target with this name.
///
/// # Panics
/// If there is no such target.
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is called {name}"))
}
