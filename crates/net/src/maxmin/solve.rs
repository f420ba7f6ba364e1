//! The solve: moves levels, lowest first, from the links that gained or lost a flow to those that see a rate change.

use super::state::{Class, HEAD, LinkId, LinkState, MaxMin, NO_LINK, Scratch, Share, UNBOUNDED, mark, record_size};
use gradtide_watch::look;
use std::cmp::Reverse;

/// A solve starts from scratch when it has looked at a quarter as many classes as there are flows, and at so many more for
/// each link. Measured: with less for a link, `random 50000 star` of `examples/fluid.rs` takes up to twice the time; with
/// as many classes as flows, `skewed 1024 within 1000` takes a tenth more.
const REFILL_PER_LINK: u64 = 16;
/// With so few stale links, as after one end, it looks at twice as many classes as flows first. Measured: a tenth of
/// `skewed 256 star`.
const FEW_STALE: u64 = 16;
/// After a solve that started from scratch at once, the next one does so with a part more of stale links. So the other
/// way is tried again now and then.
const REFILL_LESS: u64 = 256;

impl MaxMin {
    /// Rate of a class, were it not for the link `but`.
    fn rate_but(&self, class: u32, but: u32) -> u64 {
        lowest(&self.levels, self.hops_of(class).iter().copied(), but).map_or(UNBOUNDED, |(level, _)| level)
    }

    /// Level that a link should have, given the levels of all others.
    fn level(&mut self, link: u32, rising: &mut Vec<Share>) -> u64 {
        let (state, current) = (self.links[link as usize], self.levels[link as usize]);
        if current == UNBOUNDED {
            if state.surely_not_full() {
                return UNBOUNDED;
            }
            if state.used == u128::from(state.flows) * u128::from(UNBOUNDED) {
                // None has a rate yet.
                return state.capacity / state.flows;
            }
        }
        let of_held = state.level_of_held(current, self.held[link as usize].flows);
        if of_held > state.fastest_guest.saturating_add(state.flows) {
            // The others are slower by more than what rounding leaves. If some that it holds are slower elsewhere, this
            // is too low, and is looked at once more when these have been let go.
            return of_held;
        }
        self.sweep(link);
        if state.surely_not_full() {
            // Even with all at its level: that rises, and from there, for those that are faster elsewhere.
            return self.fill(link, current, true, rising);
        }
        // If it is to hold others, too, all together give up less; but for what rounding leaves.
        let least = of_held.saturating_sub(state.flows + 1).max(state.capacity / state.flows);
        let level = self.fill(link, least, false, rising);
        // Above the level that it has by less than what rounding leaves.
        if level <= current { level } else { self.fill(link, least, true, rising) }
    }

    /// Level at which flows that rise together from `level`, each up to its rate elsewhere, fill a link. Those that
    /// stop on the way are taken out. Unless the link `rises`, flows that it holds are not slower elsewhere.
    fn fill(&mut self, link: u32, mut level: u64, rises: bool, rising: &mut Vec<Share>) -> u64 {
        let (mut left, mut count) = (self.links[link as usize].capacity, 0_u64);
        let mut fastest_guest = 0;
        self.seen += self.members[link as usize].len() as u64;
        rising.clear();
        for &id in &self.members[link as usize] {
            let class = &self.classes[id as usize];
            let mut rate = self.levels[class.holder as usize];
            if class.holder != link {
                fastest_guest = rate.max(fastest_guest);
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
        self.links[link as usize].fastest_guest = fastest_guest;
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

    /// Moves levels, lowest first, until each is what the others ask for. A level depends only on lower ones, so a link
    /// need not be examined before it can be the next to move.
    ///
    /// A link that falls because others rise keeps its place in this order. It is then looked at once, after these, and
    /// not for each. Should it catch flows of a link between, that one moves once more.
    pub(super) fn solve(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.solve_count += 1;
        self.seen = 0;
        let stale = self.stale.len() as u64;
        let flows = if stale <= FEW_STALE { 2 * self.flow_count } else { self.flow_count / 4 };
        let mut most_seen = flows + REFILL_PER_LINK * self.links.len() as u64;
        if stale >= self.refill_from {
            self.refill();
            (self.refill_from, most_seen) = (self.refill_from + self.refill_from / REFILL_LESS + 1, u64::MAX);
        }
        let Scratch { mut moves, mut movers, mut rising, mut regrouped, path } = std::mem::take(&mut self.scratch);
        loop {
            look();
            if self.seen > most_seen {
                moves.clear();
                self.refill();
                (self.refill_from, most_seen) = (stale, u64::MAX);
            }
            while let Some(link) = self.stale.pop() {
                let (state, level) = (&mut self.links[link as usize], self.levels[link as usize]);
                if state.moves_at <= level && level != UNBOUNDED {
                    continue;
                }
                let moves_at = state.earliest_move(level, self.held[link as usize].flows);
                state.stale = moves_at != UNBOUNDED;
                if std::mem::replace(&mut state.moves_at, moves_at) != moves_at && moves_at != UNBOUNDED {
                    moves.push(Reverse((moves_at, link)));
                }
            }
            let Some(&Reverse((lowest, _))) = moves.peek() else { break };
            // All links that move at one level move together, so none of them depends on another.
            while let Some(&Reverse((at, link))) = moves.peek() {
                if at != lowest {
                    break;
                }
                moves.pop();
                if self.links[link as usize].moves_at != at {
                    // It is to move elsewhere since.
                    continue;
                }
                let level = self.levels[link as usize];
                let LinkState { mut asked, stale, .. } = self.links[link as usize];
                if stale {
                    asked = self.level(link, &mut rising);
                }
                let state = &mut self.links[link as usize];
                (state.asked, state.stale, state.moves_at) = (asked, false, UNBOUNDED);
                if asked != level && asked.min(level) <= at {
                    movers.push((link, asked));
                } else if asked != level {
                    // If it rises, levels of others may move until then without marking it.
                    state.stale = asked > level;
                    state.moves_at = asked.min(level);
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

    /// Gives a link another level, its flows the rates that follow, and marks the links that see it.
    fn move_level(&mut self, link: u32, level: u64, is_alone: bool, regrouped: &mut Vec<u32>) {
        let before = std::mem::replace(&mut self.levels[link as usize], level);
        let rises = level > before;
        self.seen += (self.held[link as usize].records.len() / record_size(self.stride)) as u64;
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let state = &mut links[link as usize];
        if !std::mem::replace(&mut state.turned, true) {
            self.turned.push(LinkId(link));
        }
        if let Some(touched) = touched {
            touched.push(LinkId(link));
        }
        if !rises && state.fastest_guest > level {
            regrouped.extend(self.members[link as usize].iter().copied().filter(|&class| {
                let Class { holder, count, .. } = classes[class as usize];
                count > 0 && holder != link && levels[holder as usize] > level
            }));
        }
        let held = &held[link as usize];
        let more = u128::from(level).wrapping_sub(u128::from(before));
        state.used = state.used.wrapping_add(more.wrapping_mul(u128::from(held.flows)));
        // Most of the time is spent here.
        let (links, levels) = (&mut links[..], &levels[..]);
        for record in held.records.chunks_exact(record_size(self.stride)) {
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
                    state.fastest_guest = state.fastest_guest.max(level);
                    if !state.stale {
                        mark(state, other, levels, stale, touched);
                    }
                }
            }
            if rises && elsewhere < level {
                regrouped.push(record[0]);
            }
        }
        // One that falls takes rates from its flows and asks for no other level then. One that lets flows go can rise
        // further, and for one that rises the levels of the others count, which may move now without moving a rate here.
        if rises && !(is_alone && regrouped.is_empty()) {
            mark(&mut self.links[link as usize], link, &self.levels, &mut self.stale, &mut self.touched);
        }
        for class in regrouped.drain(..) {
            let elsewhere = || lowest(&self.levels, self.hops_of(class).iter().copied(), link);
            let holder = if rises { elsewhere().expect("a link is lower").1 } else { link };
            self.move_class(class, holder);
        }
    }

    /// Lets a class be held at another link, and marks the links that see its other rate.
    fn move_class(&mut self, class: u32, holder: u32) {
        let before = u128::from(self.rate_of(class));
        self.hold(class, holder);
        let rate = self.levels[holder as usize];
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let Class { place, count, hop_count, .. } = classes[class as usize];
        let more = u128::from(rate).wrapping_sub(before).wrapping_mul(u128::from(count));
        for &link in &held[holder as usize].records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut links[link as usize];
            state.used = state.used.wrapping_add(more);
            if link != holder {
                state.fastest_guest = state.fastest_guest.max(rate);
                mark(state, link, levels, stale, touched);
            }
        }
    }
}

/// The least level of some links but one, and which of them has it, the first if there are several.
fn lowest(levels: &[u64], links: impl Iterator<Item = u32>, but: u32) -> Option<(u64, u32)> {
    links.filter(|&link| link != but).map(|link| (levels[link as usize], link)).min_by_key(|&(level, _)| level)
}
