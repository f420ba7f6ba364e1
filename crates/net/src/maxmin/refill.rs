//! Solving from scratch, where much has changed: links fill in the order of their levels, and each flow is seen once.
//!
//! Progressive filling as at the head of [`super`]. What makes it fast is that most flows stay at the link that held
//! them, so that a link which fills finds nearly all flows that stop there in one row of memory.
//!
//! ```text
//! left(l)   = capacity(l) - what flows use that are known to stop below
//! rising(l) = flows of l that are not known to stop
//! next      = the link of the least left(l) / rising(l)
//! ```
//!
//! A *stray* is a flow that stops at another link than the one that held it before. It is found when the link that held
//! it is next, and moved. Until then, the other links on its path count it among those that rise. So their
//! `left / rising` is too low, and one of them may have filled at that. [`MaxMin::refill`] marks such links, and the rest
//! of [`MaxMin::solve`] corrects them: one in 100,000 refills of a leaf-spine network has one. On paths of two links
//! there is none.

use super::state::{Filling, HEAD, LinkId, MaxMin, NO_LINK, RefillScratch, Stage, UNBOUNDED, mark, record_size};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

impl MaxMin {
    /// Gives each link the level that it should have, or marks it.
    pub(super) fn refill(&mut self) {
        let mut scratch = std::mem::take(&mut self.refill_scratch);
        let RefillScratch { fillings, before, next, strays } = &mut scratch;
        fillings.clear();
        fillings.extend(self.links.iter().map(|link| {
            let rising = u32::try_from(link.flows).expect("there are fewer than 2^32 flows");
            Filling { left: link.capacity, rising, stage: Stage::Rising }
        }));
        before.clear();
        before.extend_from_slice(&self.levels);
        self.levels.fill(UNBOUNDED);
        let used = (0..).zip(&*fillings).filter(|(_, filling)| filling.rising > 0);
        let mut heap: BinaryHeap<_> = used.map(|(link, filling)| Reverse((filling.level(), link))).collect();
        let size = record_size(self.stride);
        let mut highest = 0;
        while let Some(&Reverse((lowest, _))) = heap.peek() {
            highest = lowest;
            next.clear();
            // Levels only rise as flows stop elsewhere. Those that fill together do not see one another.
            while let Some(mut first) = heap.peek_mut() {
                let Reverse((at, link)) = *first;
                if at != lowest {
                    break;
                }
                match fillings[link as usize].level() {
                    level if level == at => next.push(link),
                    UNBOUNDED => {}
                    level => {
                        *first = Reverse((level, link));
                        continue;
                    }
                }
                PeekMut::pop(first);
            }
            next.iter().for_each(|&link| fillings[link as usize].stage = Stage::Next);
            for &link in &*next {
                for record in self.held[link as usize].records.chunks_exact(size) {
                    let mut is_stray = false;
                    for &hop in record[HEAD..].iter().take_while(|&&hop| hop != NO_LINK) {
                        let filling = &mut fillings[hop as usize];
                        match filling.stage {
                            Stage::Rising => filling.stop(lowest, record[1]),
                            Stage::Next => {}
                            Stage::Full => is_stray |= self.levels[hop as usize] < lowest,
                        }
                    }
                    if is_stray {
                        strays.push(record[0]);
                    }
                }
            }
            if strays.is_empty() {
                for &link in &*next {
                    (self.levels[link as usize], fillings[link as usize].stage) = (lowest, Stage::Full);
                }
                continue;
            }
            // As if they had not been next.
            for &link in &*next {
                for record in self.held[link as usize].records.chunks_exact(size) {
                    for &hop in record[HEAD..].iter().take_while(|&&hop| hop != NO_LINK) {
                        let filling = &mut fillings[hop as usize];
                        if filling.stage == Stage::Rising {
                            filling.left += lowest * u64::from(record[1]);
                            filling.rising += record[1];
                        }
                    }
                }
            }
            next.iter().for_each(|&link| fillings[link as usize].stage = Stage::Rising);
            for class in strays.drain(..) {
                let hops = self.hops_of(class);
                let (rate, holder) =
                    hops.iter().map(|&hop| (self.levels[hop as usize], hop)).min().expect("a flow has a link");
                let count = self.classes[class as usize].count;
                for &hop in hops {
                    if self.levels[hop as usize] > rate {
                        fillings[hop as usize].stop(rate, count);
                    }
                }
                self.hold(class, holder);
            }
            let used = next.iter().filter(|&&link| fillings[link as usize].rising > 0);
            heap.extend(used.map(|&link| Reverse((fillings[link as usize].level(), link))));
        }
        self.stale.clear();
        for (link, filling) in (0..).zip(&*fillings) {
            let (state, level) = (&mut self.links[link as usize], self.levels[link as usize]);
            let of_held = if level == UNBOUNDED { 0 } else { u128::from(level) * u128::from(filling.rising) };
            state.used = u128::from(state.capacity - filling.left) + of_held;
            (state.stale, state.moves_at) = (false, UNBOUNDED);
            state.fastest_guest = level.min(highest);
            if level != before[link as usize] && !std::mem::replace(&mut state.turned, true) {
                self.turned.push(LinkId(link));
            }
            if let Some(touched) = &mut self.touched {
                touched.push(LinkId(link));
            }
            if level != filling.level() {
                mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
            }
        }
        self.refill_scratch = scratch;
    }
}
