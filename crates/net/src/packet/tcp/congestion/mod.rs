//! Congestion control algorithms. Each has its own file, and is registered by one line at the end of this module.
//!
//! The file contains the parameters of the algorithm with their defaults, its state for one connection, and its
//! implementation of `control::CongestionControl`. From that line, the macro below generates the name in scenarios, the
//! dispatch and the list for tests. `tools/generate.py` generates Python's names and the table in
//! docs/models/packet.md.

mod control;

use crate::units::Time;
pub use control::Ecn;
pub(crate) use control::{Ack, CongestionControl, CongestionWindow, Echo};
use serde::{Deserialize, Serialize};

/// Description of an algorithm for the documentation and for Python's keys.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Registered {
    /// The algorithm with the defaults of its parameters.
    pub algorithm: CongestionAlgorithm,
    /// Short description of the algorithm.
    pub summary: &'static str,
    /// Description of the window's evolution, in Markdown.
    pub window: &'static str,
    /// Reaction to marks.
    pub ecn: Ecn,
}

/// Registers algorithms. The name of an algorithm in scenarios is the name of its module.
macro_rules! congestion_controls {
    ($($module:ident::$Control:ident,)+) => {
        $(pub mod $module;)+

        /// An algorithm with its parameters.
        #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        pub enum CongestionAlgorithm {
            $(#[doc = concat!("See [`", stringify!($module), "`].")] $Control($module::Parameters),)+
        }

        impl CongestionAlgorithm {
            /// Returns every algorithm, in order of registration.
            pub fn registered() -> Vec<Registered> {
                vec![$(Registered {
                    algorithm: Self::$Control($module::Parameters::default()),
                    summary: $module::$Control::SUMMARY,
                    window: $module::$Control::WINDOW,
                    ecn: $module::$Control::ECN,
                },)+]
            }

            /// Returns the reaction to marks.
            #[inline]
            pub fn ecn(&self) -> Ecn {
                match self {
                    $(Self::$Control(_) => $module::$Control::ECN,)+
                }
            }

            /// Returns the resolution of timestamps that the algorithm needs; `None` if any resolution will do.
            pub fn stamp_tick(&self) -> Option<Time> {
                match self {
                    $(Self::$Control(parameters) => $module::$Control::stamp_tick(parameters),)+
                }
            }

            pub(crate) fn keeps_to_syn_window(&self) -> bool {
                match self {
                    $(Self::$Control(_) => $module::$Control::KEEPS_TO_SYN_WINDOW,)+
                }
            }
        }

        /// The algorithm of one connection. Its state is boxed, so that the enum, which every acknowledgement reads,
        /// has only two words.
        #[derive(Clone, Debug)]
        pub(crate) enum Congestion {
            $($Control(Box<$module::$Control>),)+
        }

        /// The hooks of [`CongestionControl`], without dynamic dispatch.
        impl Congestion {
            pub fn new(algorithm: &CongestionAlgorithm, buffer_bytes: u64) -> Self {
                match algorithm {
                    $(CongestionAlgorithm::$Control(parameters) => {
                        Self::$Control(Box::new($module::$Control::new(parameters, buffer_bytes)))
                    })+
                }
            }

            pub fn start_window(&self, bytes: u64) -> u64 {
                match self {
                    $(Self::$Control(control) => control.start_window(bytes),)+
                }
            }

            #[inline]
            pub fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
                match self {
                    $(Self::$Control(control) => control.on_ack(window, ack),)+
                }
            }

            #[inline]
            pub fn on_echo(&mut self, echo: &Echo) {
                match self {
                    $(Self::$Control(control) => control.on_echo(echo),)+
                }
            }

            #[inline]
            pub fn on_sent(&mut self, window: &CongestionWindow, flight_bytes: u64) {
                match self {
                    $(Self::$Control(control) => control.on_sent(window, flight_bytes),)+
                }
            }

            pub fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, outstanding_bytes: u64) -> u64 {
                match self {
                    $(Self::$Control(control) => control.on_loss(window, flight_size, outstanding_bytes),)+
                }
            }

            pub fn on_timeout(&mut self, window: &CongestionWindow, flight_size: u64) -> u64 {
                match self {
                    $(Self::$Control(control) => control.on_timeout(window, flight_size),)+
                }
            }

            pub fn on_mark(&mut self, window: &CongestionWindow, outstanding_bytes: u64) -> Option<u64> {
                match self {
                    $(Self::$Control(control) => control.on_mark(window, outstanding_bytes),)+
                }
            }
        }
    };
}

congestion_controls! {
    newreno::NewReno,
    cubic::Cubic,
    dctcp::Dctcp,
    ideal::Ideal,
}
