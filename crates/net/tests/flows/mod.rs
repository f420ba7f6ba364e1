//! Flows on a star whose links carry a thousand bytes in a microsecond.

use gradtide_net::route::Policy;
use gradtide_net::{Band, Bytes, Flow, Fluid, Graph, HostId, Link, Rate, Seed, Star, Time};

pub const US: u64 = 1_000_000;

/// Returns a link of 1 GB/s, on which a thousand bytes take a microsecond.
pub fn link() -> Link {
    Link { rate: Rate::from_bps(8_000_000_000).unwrap(), delay: Time::from_ps(US) }
}

pub fn star(host_count: u32) -> Graph {
    Star { host_count, link: link() }.graph()
}

pub fn fluid(graph: &Graph) -> Fluid {
    Fluid::new(graph, Policy::DModK, Seed(0)).unwrap()
}

pub fn flow(src: u32, dst: u32, bytes: u64) -> Flow {
    Flow::alone(HostId(src), HostId(dst), Bytes(bytes))
}

pub fn in_band(band: u8, flow: Flow) -> Flow {
    Flow { band: Band::new(band).unwrap(), stream: u32::from(band), ..flow }
}
