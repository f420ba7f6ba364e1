//! Classes of flows: their links, bottleneck, and number of flows.

use super::state::{Class, ClassId, HEAD, LinkId, MaxMin, NO_LINK, mark, record_size};
use crate::index;

impl MaxMin {
    #[inline]
    pub(super) fn hops_of(&self, class: u32) -> &[u32] {
        let Class { bottleneck, place, hop_count, .. } = self.classes[class as usize];
        &self.bottlenecked[bottleneck as usize].records[place as usize + HEAD..][..hop_count as usize]
    }

    #[inline]
    pub(super) fn rate_of(&self, class: u32) -> u64 {
        self.levels[self.classes[class as usize].bottleneck as usize]
    }

    /// Adds a flow to a class (`more`) or removes one. The class has flows before and after the call.
    pub(super) fn count(&mut self, class: u32, more: bool) {
        let rate = u128::from(self.rate_of(class));
        let Self { links, levels, bottlenecked, classes, stale, touched, .. } = self;
        let Class { bottleneck, place, count, hop_count, .. } = &mut classes[class as usize];
        let bottlenecked = &mut bottlenecked[*bottleneck as usize];
        self.flow_count = if more { self.flow_count + 1 } else { self.flow_count - 1 };
        if more {
            (*count, bottlenecked.flows) = (*count + 1, bottlenecked.flows + 1);
        } else {
            (*count, bottlenecked.flows) = (*count - 1, bottlenecked.flows - 1);
        }
        let record = &mut bottlenecked.records[*place as usize..];
        record[1] = *count;
        for &link in &record[HEAD..][..*hop_count as usize] {
            let state = &mut links[link as usize];
            if more {
                state.enter(rate);
            } else {
                state.leave(rate);
            }
            mark(state, link, levels, stale, touched);
        }
    }

    /// Creates a class with one flow.
    pub(super) fn open(&mut self, path: &[LinkId], shared: bool) -> u32 {
        self.flow_count += 1;
        if path.len() > self.stride {
            self.widen(path.len());
        }
        if self.free.is_empty() && 2 * self.dead.len() > self.classes.len() {
            (0..self.links.len() as u32).for_each(|link| self.sweep(link));
            // Reverses the list, so that numbers are reused in the order in which the classes ended.
            self.free.extend(self.dead.drain(..).rev());
        }
        let index = self.free.pop().unwrap_or(self.classes.len() as u32);
        let hop_count = u16::try_from(path.len()).expect("a flow crosses fewer than 2^16 links");
        // If no link is full, the link with the most flows is the most likely bottleneck.
        let key = |link: LinkId| (self.levels[link.0 as usize], self.links[link.0 as usize].flows);
        let mut first = (key(path[0]), path[0].0);
        for &link in &path[1..] {
            let (level, flows) = key(link);
            if level < first.0.0 || (level == first.0.0 && flows > first.0.1) {
                first = ((level, flows), link.0);
            }
        }
        let ((rate, _), bottleneck) = first;
        for &LinkId(link) in path {
            self.members[link as usize].push(index);
            let state = &mut self.links[link as usize];
            state.enter(u128::from(rate));
            if link != bottleneck {
                state.fastest_elsewhere = state.fastest_elsewhere.max(rate);
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        let bottlenecked = &mut self.bottlenecked[bottleneck as usize];
        let place = u32::try_from(bottlenecked.records.len()).expect("a link has fewer than 2^32 links of its classes");
        bottlenecked.records.extend([index, 1].into_iter().chain(path.iter().map(|link| link.0)));
        bottlenecked.records.resize(place as usize + record_size(self.stride), NO_LINK);
        bottlenecked.flows += 1;
        let class = Class { bottleneck, place, count: 1, hop_count, moved: true, shared };
        let has_moved = match self.classes.get_mut(index as usize) {
            Some(state) => std::mem::replace(state, class).moved,
            None => {
                self.classes.push(class);
                false
            }
        };
        if !has_moved {
            self.moved.push(ClassId(index));
        }
        index
    }

    pub(super) fn set_bottleneck(&mut self, class: u32, bottleneck: u32) {
        let size = record_size(self.stride);
        let state = &mut self.classes[class as usize];
        let (begin, count) = (state.place as usize, u64::from(state.count));
        let both = self.bottlenecked.get_disjoint_mut([state.bottleneck as usize, bottleneck as usize]);
        let [before, bottlenecked] = both.expect("it is another link");
        state.bottleneck = bottleneck;
        state.place =
            u32::try_from(bottlenecked.records.len()).expect("a link has fewer than 2^32 links of its classes");
        if !std::mem::replace(&mut state.moved, true) {
            self.moved.push(ClassId(class));
        }
        bottlenecked.records.extend_from_slice(&before.records[begin..begin + size]);
        bottlenecked.flows += count;
        before.flows -= count;
        if let Some(other) = before.remove(begin, size) {
            self.classes[other as usize].place = begin as u32;
        }
    }

    /// Widens all records to `stride` links per path.
    pub(super) fn widen(&mut self, stride: usize) {
        let (narrow, wide) = (record_size(self.stride), record_size(stride));
        for bottlenecked in &mut self.bottlenecked {
            let mut records = Vec::with_capacity(bottlenecked.records.len() / narrow * wide);
            for record in bottlenecked.records.chunks(narrow) {
                self.classes[record[0] as usize].place = records.len() as u32;
                records.extend_from_slice(record);
                records.resize(records.len() + wide - narrow, NO_LINK);
            }
            bottlenecked.records = records;
        }
        self.stride = stride;
    }

    /// Removes the last flow of a class, and the class.
    pub(super) fn close(&mut self, index: u32) {
        let rate = u128::from(self.rate_of(index));
        let Class { bottleneck, place, hop_count, shared, .. } = self.classes[index as usize];
        self.classes[index as usize].count = 0;
        self.flow_count -= 1;
        if shared {
            let hops = self.hops_of(index);
            let (first, hash) = (hops[0], index::hash(hops.iter().copied()));
            self.shared_classes[first as usize].remove(hash, index);
        }
        let bottlenecked = &mut self.bottlenecked[bottleneck as usize];
        for &link in &bottlenecked.records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut self.links[link as usize];
            state.leave(rate);
            state.dead += 1;
            if state.flows == 0 {
                state.dead = 0;
                self.members[link as usize].clear();
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        bottlenecked.flows -= 1;
        if let Some(other) = bottlenecked.remove(place as usize, record_size(self.stride)) {
            self.classes[other as usize].place = place;
        }
        self.dead.push(index);
    }

    /// Removes all classes without flows from the members of a link.
    pub(super) fn sweep(&mut self, link: u32) {
        if std::mem::take(&mut self.links[link as usize].dead) > 0 {
            self.members[link as usize].retain(|&class| self.classes[class as usize].count > 0);
        }
    }
}

/// Returns the hash of a shared class.
pub(super) fn hash_of(path: &[LinkId]) -> u32 {
    index::hash(path.iter().map(|link| link.0))
}
