//! Deficit round robin (Shreedhar & Varghese 1995) with one queue per band.

/// The deficits of the bands, and the band that is being served.
#[derive(Clone, Debug)]
pub(super) struct Drr {
    quanta: Vec<u32>,
    deficits: Vec<u32>,
    turn: usize,
    /// Whether the band that is being served has not received its quantum yet in this round.
    fresh: bool,
}

impl Drr {
    /// Creates the state. The quantum of each band is its weight times `packet_bytes`, the size of a full packet.
    pub fn new(weights: &[u16], packet_bytes: u16) -> Self {
        let quanta: Vec<_> = weights.iter().map(|&weight| u32::from(weight) * u32::from(packet_bytes)).collect();
        Self { deficits: vec![0; quanta.len()], quanta, turn: 0, fresh: true }
    }

    /// Returns the band that sends the next packet. `head_bytes` returns the length of a band's first packet. At least
    /// one band must have a packet.
    #[inline]
    pub fn next(&mut self, head_bytes: impl Fn(usize) -> Option<u32>) -> usize {
        let Self { quanta, deficits, turn, fresh } = self;
        loop {
            let Some(bytes) = head_bytes(*turn) else {
                deficits[*turn] = 0;
                *turn = (*turn + 1) % quanta.len();
                *fresh = true;
                continue;
            };
            if *fresh {
                deficits[*turn] += quanta[*turn];
                *fresh = false;
            }
            if bytes <= deficits[*turn] {
                deficits[*turn] -= bytes;
                return *turn;
            }
            *turn = (*turn + 1) % quanta.len();
            *fresh = true;
        }
    }
}
