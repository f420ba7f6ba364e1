//! Solve from scratch, after many changes: links fill in the order of their levels, and each flow is visited once.
//!
//! Progressive filling works as described in [`super`]. Most flows keep their bottleneck. When a link fills, the
//! records of nearly all flows that stop there are therefore contiguous in memory.
//!
//! ```text
//! left(l)   = capacity(l) - rates of the flows of l that are known to have stopped on another link
//! rising(l) = number of the other flows of l
//! next      = the link with the smallest left(l) / rising(l)
//! ```
//!
//! A class is *misplaced* if it stops at a link other than its former bottleneck. It is detected when the former
//! bottleneck fills, and is then moved. Until then, the other links on its path count the class as rising. Their `left
//! / rising` is too low, and one of them may have filled at that level. [`MaxMin::refill`] marks such links, and the
//! rest of [`MaxMin::solve`] corrects them. On a leaf-spine network, one refill in 100,000 has such a link. With paths
//! of two links there is none.

use super::state::{Filling, HEAD, LinkId, MaxMin, NO_LINK, RefillScratch, Stage, UNBOUNDED, mark, record_size};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Links that are not full, by a lower bound on their level.
type Rising = BinaryHeap<Reverse<(u64, u32)>>;

impl MaxMin {
    /// Sets the level of every link, and marks the links whose level may be too low.
    pub(super) fn refill(&mut self) {
        let mut scratch = std::mem::take(&mut self.refill_scratch);
        let RefillScratch { fillings, before, next, misplaced } = &mut scratch;
        fillings.clear();
        fillings.extend(self.links.iter().map(|link| {
            let rising = u32::try_from(link.flows).expect("there are fewer than 2^32 flows");
            Filling { left: link.capacity, rising, stage: Stage::Rising }
        }));
        before.clear();
        before.extend_from_slice(&self.levels);
        self.levels.fill(UNBOUNDED);
        let used = (0..).zip(&*fillings).filter(|(_, filling)| filling.rising > 0);
        let mut heap: Rising = used.map(|(link, filling)| Reverse((filling.level(), link))).collect();
        let mut highest = 0;
        while let Some(&Reverse((lowest, _))) = heap.peek() {
            highest = lowest;
            take_next(&mut heap, lowest, fillings, next);
            next.iter().for_each(|&link| fillings[link as usize].stage = Stage::Next);
            self.stop(lowest, next, fillings, misplaced);
            if misplaced.is_empty() {
                for &link in &*next {
                    (self.levels[link as usize], fillings[link as usize].stage) = (lowest, Stage::Full);
                }
                continue;
            }
            self.undo_stop(lowest, next, fillings);
            next.iter().for_each(|&link| fillings[link as usize].stage = Stage::Rising);
            misplaced.drain(..).for_each(|class| self.replace(class, fillings));
            let used = next.iter().filter(|&&link| fillings[link as usize].rising > 0);
            heap.extend(used.map(|&link| Reverse((fillings[link as usize].level(), link))));
        }
        self.adopt(fillings, before, highest);
        self.refill_scratch = scratch;
    }

    /// Stops the flows of the links that fill at `lowest`. Collects the misplaced classes among them.
    fn stop(&self, lowest: u64, next: &[u32], fillings: &mut [Filling], misplaced: &mut Vec<u32>) {
        for &link in next {
            for record in self.bottlenecked[link as usize].records.chunks_exact(record_size(self.stride)) {
                let mut is_misplaced = false;
                for &hop in record[HEAD..].iter().take_while(|&&hop| hop != NO_LINK) {
                    let filling = &mut fillings[hop as usize];
                    match filling.stage {
                        Stage::Rising => filling.stop(lowest, record[1]),
                        Stage::Next => {}
                        Stage::Full => is_misplaced |= self.levels[hop as usize] < lowest,
                    }
                }
                if is_misplaced {
                    misplaced.push(record[0]);
                }
            }
        }
    }

    /// Undoes [`Self::stop`].
    fn undo_stop(&self, lowest: u64, next: &[u32], fillings: &mut [Filling]) {
        for &link in next {
            for record in self.bottlenecked[link as usize].records.chunks_exact(record_size(self.stride)) {
                for &hop in record[HEAD..].iter().take_while(|&&hop| hop != NO_LINK) {
                    let filling = &mut fillings[hop as usize];
                    if filling.stage == Stage::Rising {
                        filling.left += lowest * u64::from(record[1]);
                        filling.rising += record[1];
                    }
                }
            }
        }
    }

    /// Moves a misplaced class to the link at which it stops.
    fn replace(&mut self, class: u32, fillings: &mut [Filling]) {
        let hops = self.hops_of(class);
        let (rate, bottleneck) =
            hops.iter().map(|&hop| (self.levels[hop as usize], hop)).min().expect("a flow has a link");
        let count = self.classes[class as usize].count;
        for &hop in hops {
            if self.levels[hop as usize] > rate {
                fillings[hop as usize].stop(rate, count);
            }
        }
        self.set_bottleneck(class, bottleneck);
    }

    /// Updates the state of all links, and marks those whose level is too low.
    fn adopt(&mut self, fillings: &[Filling], before: &[u64], highest: u64) {
        self.stale.clear();
        for (link, filling) in (0..).zip(fillings) {
            let (state, level) = (&mut self.links[link as usize], self.levels[link as usize]);
            let of_bottlenecked = if level == UNBOUNDED { 0 } else { u128::from(level) * u128::from(filling.rising) };
            state.used = u128::from(state.capacity - filling.left) + of_bottlenecked;
            (state.stale, state.moves_at) = (false, UNBOUNDED);
            state.fastest_elsewhere = level.min(highest);
            if level != before[link as usize] && !std::mem::replace(&mut state.changed, true) {
                self.changed.push(LinkId(link));
            }
            if let Some(touched) = &mut self.touched {
                touched.push(LinkId(link));
            }
            if level != filling.level() {
                mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
            }
        }
    }
}

/// Moves the links that fill at `lowest` from the heap to `next`. Outdated entries of the heap are too low, never too
/// high, because levels only rise as flows stop on other links. Links that fill together do not affect one another.
fn take_next(heap: &mut Rising, lowest: u64, fillings: &[Filling], next: &mut Vec<u32>) {
    next.clear();
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
}
