//! Collectives: what a transfer becomes on the network.

pub mod ring;
