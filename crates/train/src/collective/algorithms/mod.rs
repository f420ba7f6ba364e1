//! The collective algorithms, one file each.

use super::algorithm::CollectiveAlgorithm;
use super::levels::{CollectiveKind, Levels, Span};
use super::nodes::Links;
use gradtide_net::{Bytes, Time};
use serde::Deserialize;
use std::ops::Deref;

/// Registers algorithms: declares their modules, the enum of all algorithms, and its functions. An entry of the form
/// `"name" file::Type` is deserialised from `{"kind": "name", …}` with the fields of the type. `tools/generate.py`
/// writes the names for Python and the table of `docs/models/collectives.md` from it.
macro_rules! algorithms {
    ($($name:literal $file:ident::$algorithm:ident,)+) => {
        $(pub mod $file; pub use $file::$algorithm;)+

        /// A collective algorithm with its parameters.
        #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
        #[serde(tag = "kind")]
        pub enum Algorithm {
            $(#[serde(rename = $name)] #[doc = concat!("See [`", stringify!($file), "`].")] $algorithm($algorithm),)+
        }

        $(impl From<$algorithm> for Algorithm {
            fn from(algorithm: $algorithm) -> Self {
                Self::$algorithm(algorithm)
            }
        })+

        impl Deref for Algorithm {
            type Target = dyn CollectiveAlgorithm;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$algorithm(algorithm) => algorithm,)+
                }
            }
        }

        impl Algorithm {
            /// Returns the name in scenarios.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$algorithm(_) => $name,)+
                }
            }

            /// Returns all algorithms with default parameters.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::from($algorithm::default()),)+].into_iter()
            }

            /// Returns all algorithms with every combination of parameters that tests use on `ranks` ranks.
            pub fn samples(ranks: u32) -> Vec<Self> {
                let mut all: Vec<Self> = Vec::new();
                $(all.extend($algorithm::samples(ranks).into_iter().map(Self::from));)+
                all
            }
        }
    };
}

algorithms! {
    "ring" ring::Ring,
    "single_ring" single_ring::SingleRing,
    "halving_doubling" halving_doubling::HalvingDoubling,
    "shuffle" shuffle::Shuffle,
    "tree" tree::Tree,
    "binary_tree" binary_tree::BinaryTree,
    "butterfly" butterfly::Butterfly,
    "butterfly_layered" butterfly_layered::ButterflyLayered,
    "hierarchical" hierarchical::Hierarchical,
    "ps" ps::ParameterServer,
    "all_gather" all_gather::AllGather,
    "reduce_scatter" reduce_scatter::ReduceScatter,
    "all_to_all" all_to_all::AllToAll,
    "broadcast" broadcast::Broadcast,
    "point_to_point" point_to_point::PointToPoint,
}

impl Algorithm {
    /// Returns the algorithm of a process group that NCCL prefers if several are equally fast, and the load of a rank.
    ///
    /// # Panics
    /// If process groups have no algorithm for the operation.
    pub fn of_group(operation: CollectiveKind, span: Span) -> (Self, Levels) {
        Self::of_groups(operation, span).next().expect("every operation has an algorithm")
    }

    /// Returns the algorithm of a process group that is fastest on an idle network, as NCCL chooses it, and the load of
    /// a rank. Ties go to the first of the list.
    ///
    /// # Panics
    /// As [`of_group`](Self::of_group).
    pub fn fastest(operation: CollectiveKind, span: Span, bytes: Bytes, links: &Links) -> (Self, Levels) {
        let time = |(_, levels): &(Self, Levels)| links.time(levels, bytes).unwrap_or(Time::MAX);
        Self::of_groups(operation, span).min_by_key(time).expect("every operation has an algorithm")
    }

    fn of_groups(operation: CollectiveKind, span: Span) -> impl Iterator<Item = (Self, Levels)> {
        let fits = move |one: &Self| one.about().operation == operation;
        Self::all().filter(fits).filter_map(move |one| Some((one, one.levels(span)?)))
    }
}
