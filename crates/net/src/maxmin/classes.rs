//! Classes of flows: which links they cross, at which one they are held, and how many flows each has.

use super::state::{Class, ClassId, HEAD, LinkId, MaxMin, NO_LINK, mark, record_size};
use crate::index;

impl MaxMin {
    #[inline]
    pub(super) fn hops_of(&self, class: u32) -> &[u32] {
        let Class { holder, place, hop_count, .. } = self.classes[class as usize];
        &self.held[holder as usize].records[place as usize + HEAD..][..hop_count as usize]
    }

    #[inline]
    pub(super) fn rate_of(&self, class: u32) -> u64 {
        self.levels[self.classes[class as usize].holder as usize]
    }

    /// One flow of a class more, or less, that keeps some.
    pub(super) fn count(&mut self, class: u32, more: bool) {
        let rate = u128::from(self.rate_of(class));
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let Class { holder, place, count, hop_count, .. } = &mut classes[class as usize];
        let held = &mut held[*holder as usize];
        self.flow_count = if more { self.flow_count + 1 } else { self.flow_count - 1 };
        if more {
            (*count, held.flows) = (*count + 1, held.flows + 1);
        } else {
            (*count, held.flows) = (*count - 1, held.flows - 1);
        }
        let record = &mut held.records[*place as usize..];
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

    /// A new class with one flow.
    pub(super) fn open(&mut self, path: &[LinkId], shared: bool) -> u32 {
        self.flow_count += 1;
        if path.len() > self.stride {
            self.widen(path.len());
        }
        if self.free.is_empty() && 2 * self.gone.len() > self.classes.len() {
            (0..self.links.len() as u32).for_each(|link| self.sweep(link));
            // The ones that ended first are used first, so that numbers are in the order of coming again.
            self.free.extend(self.gone.drain(..).rev());
        }
        let index = self.free.pop().unwrap_or(self.classes.len() as u32);
        let hop_count = u16::try_from(path.len()).expect("a flow crosses fewer than 2^16 links");
        // If no link is full, the one with the most flows is likely to hold it.
        let key = |link: LinkId| (self.levels[link.0 as usize], self.links[link.0 as usize].flows);
        let mut first = (key(path[0]), path[0].0);
        for &link in &path[1..] {
            let (level, flows) = key(link);
            if level < first.0.0 || (level == first.0.0 && flows > first.0.1) {
                first = ((level, flows), link.0);
            }
        }
        let ((rate, _), holder) = first;
        for &LinkId(link) in path {
            self.members[link as usize].push(index);
            let state = &mut self.links[link as usize];
            state.enter(u128::from(rate));
            if link != holder {
                state.fastest_guest = state.fastest_guest.max(rate);
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        let held = &mut self.held[holder as usize];
        let place = u32::try_from(held.records.len()).expect("a link has fewer than 2^32 links of its classes");
        held.records.extend([index, 1].into_iter().chain(path.iter().map(|link| link.0)));
        held.records.resize(place as usize + record_size(self.stride), NO_LINK);
        held.flows += 1;
        let class = Class { holder, place, count: 1, hop_count, moved: true, shared };
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

    /// Lets a class be held at another link.
    pub(super) fn hold(&mut self, class: u32, holder: u32) {
        let size = record_size(self.stride);
        let state = &mut self.classes[class as usize];
        let (begin, count) = (state.place as usize, u64::from(state.count));
        let both = self.held.get_disjoint_mut([state.holder as usize, holder as usize]);
        let [before, held] = both.expect("it is another link");
        state.holder = holder;
        state.place = u32::try_from(held.records.len()).expect("a link has fewer than 2^32 links of its classes");
        if !std::mem::replace(&mut state.moved, true) {
            self.moved.push(ClassId(class));
        }
        held.records.extend_from_slice(&before.records[begin..begin + size]);
        held.flows += count;
        before.flows -= count;
        if let Some(other) = before.remove(begin, size) {
            self.classes[other as usize].place = begin as u32;
        }
    }

    /// Lays the records out anew, for paths of more links.
    pub(super) fn widen(&mut self, stride: usize) {
        let (narrow, wide) = (record_size(self.stride), record_size(stride));
        for held in &mut self.held {
            let mut records = Vec::with_capacity(held.records.len() / narrow * wide);
            for record in held.records.chunks(narrow) {
                self.classes[record[0] as usize].place = records.len() as u32;
                records.extend_from_slice(record);
                records.resize(records.len() + wide - narrow, NO_LINK);
            }
            held.records = records;
        }
        self.stride = stride;
    }

    /// Removes the last flow of a class.
    pub(super) fn close(&mut self, index: u32) {
        let rate = u128::from(self.rate_of(index));
        let Class { holder, place, hop_count, shared, .. } = self.classes[index as usize];
        self.classes[index as usize].count = 0;
        self.flow_count -= 1;
        if shared {
            let hops = self.hops_of(index);
            let (first, hash) = (hops[0], index::hash(hops.iter().copied()));
            self.known[first as usize].remove(hash, index);
        }
        let held = &mut self.held[holder as usize];
        for &link in &held.records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut self.links[link as usize];
            state.leave(rate);
            state.gone += 1;
            if state.flows == 0 {
                state.gone = 0;
                self.members[link as usize].clear();
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        held.flows -= 1;
        if let Some(other) = held.remove(place as usize, record_size(self.stride)) {
            self.classes[other as usize].place = place;
        }
        self.gone.push(index);
    }

    /// Takes classes without flows out of the members of a link, all in one go.
    pub(super) fn sweep(&mut self, link: u32) {
        if std::mem::take(&mut self.links[link as usize].gone) > 0 {
            self.members[link as usize].retain(|&class| self.classes[class as usize].count > 0);
        }
    }
}

/// Under which a class stands in `known`.
pub(super) fn hash_of(path: &[LinkId]) -> u32 {
    index::hash(path.iter().map(|link| link.0))
}
