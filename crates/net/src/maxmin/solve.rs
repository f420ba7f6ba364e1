//! The incremental solve. It moves levels, lowest first, from the links that gained or lost a flow to the links where a
//! rate changes.

use super::state::{Class, HEAD, LinkId, LinkState, MaxMin, NO_LINK, Scratch, Share, UNBOUNDED, mark, record_size};
use gradtide_watch::check_cancelled;
use std::cmp::Reverse;

/// A solve starts from scratch once it has visited flows/4 + REFILL_PER_LINK · links classes. Measured with
/// `examples/fluid.rs`: with a lower value, `random 50000 star` takes up to twice the time. If the limit is as many
/// classes as there are flows, `skewed 1024 within 1000` takes a tenth longer.
const REFILL_PER_LINK: u64 = 16;
/// Maximum number of stale links with which a solve may visit 2 · flows instead of flows/4 classes before it starts
/// from scratch. A single flow that ends makes at most this many links stale. Measured: `skewed 256 star` of
/// `examples/fluid.rs` takes a tenth less time.
const FEW_STALE: u64 = 16;
/// Each solve that starts from scratch because of its number of stale links raises the threshold of that number by
/// 1/REFILL_LESS. The incremental solve is thus tried again from time to time.
const REFILL_LESS: u64 = 256;

impl MaxMin {
    /// Returns the rate that a class would have if its path did not contain the link `except`.
    fn rate_but(&self, class: u32, except: u32) -> u64 {
        lowest(&self.levels, self.hops_of(class).iter().copied(), except).map_or(UNBOUNDED, |(level, _)| level)
    }

    /// Returns the level of a link, given the levels of all other links.
    fn level(&mut self, link: u32, rising: &mut Vec<Share>) -> u64 {
        let (state, current) = (self.links[link as usize], self.levels[link as usize]);
        if current == UNBOUNDED {
            if state.surely_not_full() {
                return UNBOUNDED;
            }
            if state.used == u128::from(state.flows) * u128::from(UNBOUNDED) {
                // The flows have no rates yet, so the link divides its capacity evenly.
                return state.capacity / state.flows;
            }
        }
        let of_bottlenecked = state.level_of_bottlenecked(current, self.bottlenecked[link as usize].flows);
        if of_bottlenecked > state.fastest_elsewhere.saturating_add(state.flows) {
            // Flows with another bottleneck are slower than this level by more than the rounding error, so the flows
            // with this bottleneck share the remaining capacity. If another link limits some of them to less, the level
            // is too low. It is computed again once these flows have the other link as bottleneck.
            return of_bottlenecked;
        }
        self.sweep(link);
        if state.surely_not_full() {
            // The level rises from its current value. No flow rises above the rate that its other links allow.
            return self.fill(link, current, true, rising);
        }
        // If a falling link also becomes the bottleneck of other flows, the reduction is spread over more flows. This
        // level is therefore a lower bound, except for the rounding error.
        let least = of_bottlenecked.saturating_sub(state.flows + 1).max(state.capacity / state.flows);
        let level = self.fill(link, least, false, rising);
        // Rounding errors can make `level` exceed the current level. It is then computed as a rise from `least`.
        if level <= current { level } else { self.fill(link, least, true, rising) }
    }

    /// Returns the level at which a link is full if its flows rise together from `level`, each up to the rate that its
    /// other links allow. If `rises` is unset, no other link may limit the flows whose bottleneck is this link.
    fn fill(&mut self, link: u32, mut level: u64, rises: bool, rising: &mut Vec<Share>) -> u64 {
        let (mut left, mut count) = (self.links[link as usize].capacity, 0_u64);
        let mut fastest_elsewhere = 0;
        self.visited += self.members[link as usize].len() as u64;
        rising.clear();
        for &id in &self.members[link as usize] {
            let class = &self.classes[id as usize];
            let mut rate = self.levels[class.bottleneck as usize];
            if class.bottleneck != link {
                fastest_elsewhere = rate.max(fastest_elsewhere);
            } else if rises {
                rate = self.rate_but(id, link);
            }
            let share = Share { rate, count: class.count.into() };
            if share.rate < level {
                left -= share.rate * share.count;
            } else {
                count += share.count;
                rising.push(share);
            }
        }
        self.links[link as usize].fastest_elsewhere = fastest_elsewhere;
        loop {
            let next = left.checked_div(count).unwrap_or(UNBOUNDED);
            if next == level || next == UNBOUNDED {
                return next;
            }
            level = next;
            rising.retain(|share| {
                let stays = share.rate >= level;
                if !stays {
                    left -= share.rate * share.count;
                    count -= share.count;
                }
                stays
            });
        }
    }

    /// Moves levels, lowest first, until each is consistent with the others. A level depends only on lower levels, so a
    /// link is computed only when it may be the next to move.
    ///
    /// If flows of a link get higher rates at other links, the level of the link falls. The link keeps its key in the
    /// heap, so its level is computed once, after all of these changes. If the link then becomes the bottleneck of
    /// flows whose former bottleneck has moved in between, that former bottleneck moves once more.
    pub(super) fn solve(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.solve_count += 1;
        self.visited = 0;
        let stale = self.stale.len() as u64;
        let flows = if stale <= FEW_STALE { 2 * self.flow_count } else { self.flow_count / 4 };
        let mut visit_limit = flows + REFILL_PER_LINK * self.links.len() as u64;
        if stale >= self.refill_from {
            self.refill();
            (self.refill_from, visit_limit) = (self.refill_from + self.refill_from / REFILL_LESS + 1, u64::MAX);
        }
        let Scratch { mut moves, mut movers, mut rising, mut regrouped, path } = std::mem::take(&mut self.scratch);
        loop {
            check_cancelled();
            if self.visited > visit_limit {
                moves.clear();
                self.refill();
                (self.refill_from, visit_limit) = (stale, u64::MAX);
            }
            while let Some(link) = self.stale.pop() {
                let (state, level) = (&mut self.links[link as usize], self.levels[link as usize]);
                if state.moves_at <= level && level != UNBOUNDED {
                    continue;
                }
                let moves_at = state.earliest_move(level, self.bottlenecked[link as usize].flows);
                state.stale = moves_at != UNBOUNDED;
                if std::mem::replace(&mut state.moves_at, moves_at) != moves_at && moves_at != UNBOUNDED {
                    moves.push(Reverse((moves_at, link)));
                }
            }
            let Some(&Reverse((lowest, _))) = moves.peek() else { break };
            // All links that move at the same level move together, because none of them depends on another.
            while let Some(&Reverse((at, link))) = moves.peek() {
                if at != lowest {
                    break;
                }
                moves.pop();
                if self.links[link as usize].moves_at != at {
                    // An outdated entry.
                    continue;
                }
                let level = self.levels[link as usize];
                let LinkState { mut target, stale, .. } = self.links[link as usize];
                if stale {
                    target = self.level(link, &mut rising);
                }
                let state = &mut self.links[link as usize];
                (state.target, state.stale, state.moves_at) = (target, false, UNBOUNDED);
                if target != level && target.min(level) <= at {
                    movers.push((link, target));
                } else if target != level {
                    // A link that is going to rise stays stale: until then, changes of other levels do not mark it.
                    state.stale = target > level;
                    state.moves_at = target.min(level);
                    moves.push(Reverse((state.moves_at, link)));
                }
            }
            let is_alone = movers.len() == 1;
            for (link, level) in movers.drain(..) {
                self.move_level(link, level, is_alone, &mut regrouped);
            }
        }
        self.scratch = Scratch { moves, movers, rising, regrouped, path };
    }

    /// Sets the level of a link and the rates of its flows, and marks the other links of these flows as stale.
    fn move_level(&mut self, link: u32, level: u64, is_alone: bool, regrouped: &mut Vec<u32>) {
        let before = std::mem::replace(&mut self.levels[link as usize], level);
        let rises = level > before;
        self.visited += (self.bottlenecked[link as usize].records.len() / record_size(self.stride)) as u64;
        let Self { links, levels, bottlenecked, classes, stale, touched, .. } = self;
        let state = &mut links[link as usize];
        if !std::mem::replace(&mut state.changed, true) {
            self.changed.push(LinkId(link));
        }
        if let Some(touched) = touched {
            touched.push(LinkId(link));
        }
        if !rises && state.fastest_elsewhere > level {
            regrouped.extend(self.members[link as usize].iter().copied().filter(|&class| {
                let Class { bottleneck, count, .. } = classes[class as usize];
                count > 0 && bottleneck != link && levels[bottleneck as usize] > level
            }));
        }
        let bottlenecked = &bottlenecked[link as usize];
        let more = u128::from(level).wrapping_sub(u128::from(before));
        state.used = state.used.wrapping_add(more.wrapping_mul(u128::from(bottlenecked.flows)));
        // The hot loop of the solver.
        let (links, levels) = (&mut links[..], &levels[..]);
        for record in bottlenecked.records.chunks_exact(record_size(self.stride)) {
            let more = if record[1] == 1 { more } else { more.wrapping_mul(u128::from(record[1])) };
            let mut elsewhere = UNBOUNDED;
            for &other in &record[HEAD..] {
                if other == NO_LINK {
                    break;
                }
                if other != link {
                    elsewhere = elsewhere.min(levels[other as usize]);
                    let state = &mut links[other as usize];
                    state.used = state.used.wrapping_add(more);
                    state.fastest_elsewhere = state.fastest_elsewhere.max(level);
                    if !state.stale {
                        mark(state, other, levels, stale, touched);
                    }
                }
            }
            if rises && elsewhere < level {
                regrouped.push(record[0]);
            }
        }
        // A falling link is now at its new level. A rising link is marked again: it can rise further if some of its
        // flows have a new bottleneck, and levels of links that move in the same step may affect it without changing a
        // rate on it.
        if rises && !(is_alone && regrouped.is_empty()) {
            mark(&mut self.links[link as usize], link, &self.levels, &mut self.stale, &mut self.touched);
        }
        for class in regrouped.drain(..) {
            let elsewhere = || lowest(&self.levels, self.hops_of(class).iter().copied(), link);
            let bottleneck = if rises { elsewhere().expect("a link is lower").1 } else { link };
            self.move_class(class, bottleneck);
        }
    }

    /// Changes the bottleneck of a class, and thereby its rate. Marks the class's other links, whose level may change.
    fn move_class(&mut self, class: u32, bottleneck: u32) {
        let before = u128::from(self.rate_of(class));
        self.set_bottleneck(class, bottleneck);
        let rate = self.levels[bottleneck as usize];
        let Self { links, levels, bottlenecked, classes, stale, touched, .. } = self;
        let Class { place, count, hop_count, .. } = classes[class as usize];
        let more = u128::from(rate).wrapping_sub(before).wrapping_mul(u128::from(count));
        for &link in &bottlenecked[bottleneck as usize].records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut links[link as usize];
            state.used = state.used.wrapping_add(more);
            if link != bottleneck {
                state.fastest_elsewhere = state.fastest_elsewhere.max(rate);
                mark(state, link, levels, stale, touched);
            }
        }
    }
}

/// Returns the lowest level among `links` without `except`, and the first link with that level.
fn lowest(levels: &[u64], links: impl Iterator<Item = u32>, except: u32) -> Option<(u64, u32)> {
    links.filter(|&link| link != except).map(|link| (levels[link as usize], link)).min_by_key(|&(level, _)| level)
}
