//! Ring all-reduce in lock step.

use gradtide_net::{Band, Bytes, Connection, Flow, HostId, Time};

/// The ring all-reduce of `bytes` as one flow of the first host: 2(N-1) messages of S/N, each followed by the
/// propagation delay. All hosts do the same at the same time, so one represents all. `None` for a single host, which
/// has no peer.
///
/// # Source
/// Thesis eq. 4.1; Patarasuk & Yuan (2009).
pub fn lock_step(hosts: &[u32], bytes: Bytes, band: Band, stream: u32, hold: Time) -> Option<Flow> {
    let host_count = hosts.len() as u32;
    (host_count > 1).then(|| Flow {
        src: HostId(hosts[0]),
        dst: HostId(hosts[1]),
        bytes,
        rounds: 2 * (host_count - 1),
        parts: host_count,
        counted: Bytes(bytes.0 / u64::from(host_count)),
        hold,
        band,
        stream,
        connection: Connection::Stream,
        part: None,
        announced: None,
        listed: None,
    })
}
