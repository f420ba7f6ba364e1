//! Targets for a fuzzer: each takes any bytes, and panics where the core does what it never may.
//!
//! `make fuzz` has libFuzzer feed them (`libfuzzer/`), guided by coverage. `cargo test` feeds them the files of `seeds/`
//! and some mutants of each, so that a target cannot stop working unseen.

pub mod collectives;
pub mod json;
pub mod maxmin;
pub mod orders;
pub mod runs;
pub mod traces;

/// A target by the name of its folder in `seeds/`.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Checks what the core makes of any bytes.
    pub check: fn(&[u8]),
    /// Whether its inputs are JSON, and are mutated as such.
    pub is_json: bool,
}

/// Every target.
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

/// The target of this name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is called {name}"))
}
