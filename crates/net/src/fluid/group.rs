//! Finds the message that is received next, without visiting every flow when rates change.
//!
//! Classes with the same [bottleneck](crate::maxmin) have the same rate and form a group. The work of a group is the
//! integral of its rate over time. Each class has a target, i.e. the work at which its next message is received, and a
//! heap orders the classes of a group by target. A change of rate hence changes no target. When a class moves to
//! another group, its target is converted to the work of the new group.

use super::due::{Due, NEVER};

/// Sentinel: no index.
const NONE: u32 = u32::MAX;
/// Target and slot of a class that has no flows.
pub(super) const NO_MESSAGE: (u128, u32) = (u128::MAX, NONE);

/// The classes of one solver, in groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// Groups, by bottleneck link.
    groups: Vec<Group>,
    classes: Vec<ClassState>,
    /// Groups whose next message may have changed.
    replan: Vec<u32>,
}

/// Classes with the same bottleneck.
#[derive(Clone, Debug, Default)]
struct Group {
    rate: u64,
    /// Work done by a flow that has always been in the group, minus rate times current time; modulo 2^128.
    ahead: u128,
    /// A 4-ary heap of the classes by target.
    classes: Vec<u32>,
    /// Whether the group is in [`Groups::replan`].
    replan: bool,
}

/// State of a class, that is, of flows with the same links.
#[derive(Clone, Debug)]
struct ClassState {
    /// Work of the class at which its next message is received, and the slot of that message's flow; [`NO_MESSAGE`] if
    /// the class has no flows.
    target: u128,
    slot: u32,
    /// Group of the class, i.e. its bottleneck link. [`NONE`] before the first solve.
    group: u32,
    /// Position in the heap of the group; [`NONE`] outside of the heap.
    place: u32,
    /// Work done by a flow since the class was opened, minus the work of the group; modulo 2^128.
    ahead: u128,
}

const BRANCHES: usize = 4;

impl Group {
    fn work_at(&self, now_fs: u128) -> u128 {
        u128::from(self.rate).wrapping_mul(now_fs).wrapping_add(self.ahead)
    }
}

impl Groups {
    pub fn new(link_count: usize) -> Self {
        Self { groups: vec![Group::default(); link_count], classes: Vec::new(), replan: Vec::new() }
    }

    pub fn open(&mut self, class: u32) {
        if class as usize >= self.classes.len() {
            let (target, slot) = NO_MESSAGE;
            let new = ClassState { target, slot, group: NONE, place: NONE, ahead: 0 };
            self.classes.resize(class as usize + 1, new);
        }
    }

    /// Closes a class without flows.
    pub fn close(&mut self, class: u32) {
        self.pull(class);
        let (target, slot) = NO_MESSAGE;
        self.classes[class as usize] = ClassState { target, slot, group: NONE, place: NONE, ahead: 0 };
    }

    /// Returns the message of a class that is received next: its target, as a value of [`Self::work_at`], and the slot
    /// of its flow.
    pub fn first(&self, class: u32) -> (u128, u32) {
        let ClassState { target, slot, .. } = self.classes[class as usize];
        (target, slot)
    }

    /// Returns the message of [`Self::first`], if that message is received by `until_fs`.
    pub fn first_by(&self, class: u32, until_fs: u128) -> Option<(u128, u32)> {
        let (target, slot) = self.first(class);
        (slot != NONE && target <= self.work_at(class, until_fs)).then_some((target, slot))
    }

    pub fn set_first(&mut self, class: u32, (target, slot): (u128, u32)) {
        self.pull(class);
        let state = &mut self.classes[class as usize];
        (state.target, state.slot) = (target, slot);
        if state.group != NONE {
            self.push(class);
        }
    }

    /// Returns the work done by a flow that has been in a class since the class was opened.
    pub fn work_at(&self, class: u32, now_fs: u128) -> u128 {
        let ClassState { group, ahead, .. } = self.classes[class as usize];
        self.groups.get(group as usize).map_or(0, |group| group.work_at(now_fs)).wrapping_add(ahead)
    }

    pub fn rate(&self, class: u32) -> u64 {
        self.groups[self.classes[class as usize].group as usize].rate
    }

    pub fn set_rate(&mut self, link: u32, rate: u64, now_fs: u128) {
        let group = &mut self.groups[link as usize];
        group.ahead = group.work_at(now_fs).wrapping_sub(u128::from(rate).wrapping_mul(now_fs));
        group.rate = rate;
        self.replan(link);
    }

    /// Moves a class to a group.
    pub fn move_to(&mut self, class: u32, link: u32, now_fs: u128) {
        let work = self.work_at(class, now_fs);
        self.pull(class);
        let state = &mut self.classes[class as usize];
        state.ahead = work.wrapping_sub(self.groups[link as usize].work_at(now_fs));
        state.group = link;
        self.push(class);
    }

    /// Removes the classes whose next message is received by `until_fs` from the heap of a group, and appends them to
    /// `due`.
    pub fn take(&mut self, link: u32, until_fs: u128, due: &mut Vec<u32>) {
        let work = self.groups[link as usize].work_at(until_fs);
        if self.groups[link as usize].classes.iter().all(|&class| !is_before(work, self.key(class))) {
            // All messages of the group are received. This is the most frequent case with regular traffic, and it needs
            // no heap operations.
            let Self { groups, classes, .. } = self;
            due.extend(groups[link as usize].classes.drain(..).inspect(|&class| classes[class as usize].place = NONE));
        }
        while let Some(&class) = self.groups[link as usize].classes.first() {
            if is_before(work, self.key(class)) {
                break;
            }
            self.pull(class);
            due.push(class);
        }
        self.replan(link);
    }

    /// Computes when the next message of every changed group is received, and updates `due`.
    pub fn plan(&mut self, now_fs: u128, due: &mut Due) {
        // The last division is cached, because many groups have the same work left at the same rate, and dividing
        // 128-bit numbers is slow.
        let mut known = (0, 1, 0);
        for link in self.replan.drain(..) {
            let group = &mut self.groups[link as usize];
            group.replan = false;
            let Some(&class) = group.classes.first().filter(|_| group.rate > 0) else {
                due.remove(link);
                continue;
            };
            let ClassState { target, ahead, .. } = self.classes[class as usize];
            let left = target.wrapping_sub(ahead).wrapping_sub(group.work_at(now_fs));
            if (known.0, known.1) != (left, group.rate) {
                known = (left, group.rate, left.div_ceil(u128::from(group.rate)));
            }
            match NEVER.min(now_fs + known.2) {
                NEVER => due.remove(link),
                at => due.set(link, at),
            }
        }
    }

    fn replan(&mut self, link: u32) {
        if !std::mem::replace(&mut self.groups[link as usize].replan, true) {
            self.replan.push(link);
        }
    }

    /// Returns the target of a class, as work of its group.
    fn key(&self, class: u32) -> u128 {
        let ClassState { target, ahead, .. } = self.classes[class as usize];
        target.wrapping_sub(ahead)
    }

    fn push(&mut self, class: u32) {
        let link = self.classes[class as usize].group;
        let heap = &mut self.groups[link as usize].classes;
        heap.push(class);
        let place = heap.len() - 1;
        self.sift_up(link, place, class);
        if self.classes[class as usize].place == 0 {
            self.replan(link);
        }
    }

    fn pull(&mut self, class: u32) {
        let ClassState { group: link, place, .. } = self.classes[class as usize];
        if place == NONE {
            return;
        }
        self.classes[class as usize].place = NONE;
        let heap = &mut self.groups[link as usize].classes;
        let last = heap.pop().expect("it is in the heap");
        if last != class {
            let place = self.sift_up(link, place as usize, last);
            self.sift_down(link, place, last);
        }
        if place == 0 {
            self.replan(link);
        }
    }

    fn set(&mut self, link: u32, place: usize, class: u32) {
        self.groups[link as usize].classes[place] = class;
        self.classes[class as usize].place = place as u32;
    }

    /// Moves a class up from `place` to its position in the heap. Returns that position.
    fn sift_up(&mut self, link: u32, mut place: usize, class: u32) -> usize {
        let key = self.key(class);
        while place > 0 {
            let above = self.groups[link as usize].classes[(place - 1) / BRANCHES];
            if !is_before(key, self.key(above)) {
                break;
            }
            self.set(link, place, above);
            place = (place - 1) / BRANCHES;
        }
        self.set(link, place, class);
        place
    }

    fn sift_down(&mut self, link: u32, mut place: usize, class: u32) {
        let key = self.key(class);
        loop {
            let heap = &self.groups[link as usize].classes;
            let first = BRANCHES * place + 1;
            let mut least = (key, NONE as usize);
            for (below, &class) in heap.iter().enumerate().skip(first).take(BRANCHES) {
                let key = self.key(class);
                if is_before(key, least.0) {
                    least = (key, below);
                }
            }
            if least.1 == NONE as usize {
                break;
            }
            self.set(link, place, heap[least.1]);
            place = least.1;
        }
        self.set(link, place, class);
    }
}

/// Compares two values of work modulo 2^128. All values in use at one time lie within half of that range.
fn is_before(one: u128, other: u128) -> bool {
    (one.wrapping_sub(other) as i128) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After arbitrary changes of rates and groups, completion times equal those computed separately for each class.
    #[test]
    fn groups_plan_what_each_class_would_plan() {
        const LINKS: u64 = 5;
        const CLASSES: u64 = 60;
        let (mut groups, mut due) = (Groups::new(LINKS as usize), Due::default());
        // Remaining work and bottleneck link of each class.
        let mut left: Vec<Option<(u128, u32)>> = vec![None; CLASSES as usize];
        let mut rates = [0_u64; LINKS as usize];
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut now_fs = 1_u128 << 80;
        for _ in 0..20_000 {
            let (class, link) = (draw(CLASSES) as u32, draw(LINKS) as u32);
            match draw(4) {
                0 => {
                    rates[link as usize] = draw(1 << 30) * draw(2);
                    groups.set_rate(link, rates[link as usize], now_fs);
                }
                1 if left[class as usize].is_none() => {
                    groups.open(class);
                    let work = 1 + u128::from(draw(1 << 30)) * u128::from(draw(1 << 30));
                    groups.set_first(class, (groups.work_at(class, now_fs) + work, class));
                    groups.move_to(class, link, now_fs);
                    left[class as usize] = Some((work, link));
                }
                2 if left[class as usize].is_some() => {
                    groups.move_to(class, link, now_fs);
                    left[class as usize].as_mut().unwrap().1 = link;
                }
                _ => {}
            }
            groups.plan(now_fs, &mut due);
            let at = |&(left, link): &(u128, u32)| match rates[link as usize] {
                0 => NEVER,
                rate => now_fs + left.div_ceil(u128::from(rate)),
            };
            let next = left.iter().flatten().map(at).min().unwrap_or(NEVER);
            assert_eq!(due.first_at(), next);
            let until = next.min(now_fs + u128::from(draw(1 << 30)));
            for (left, link) in left.iter_mut().flatten() {
                *left = left.saturating_sub(u128::from(rates[*link as usize]) * (until - now_fs));
            }
            now_fs = until;
            let mut links = Vec::new();
            due.take(now_fs, &mut links);
            let mut classes = Vec::new();
            links.drain(..).for_each(|link| groups.take(link, now_fs, &mut classes));
            for class in classes {
                assert_eq!(left[class as usize].take().map(|(left, _)| left), Some(0));
                groups.close(class);
            }
            assert!(left.iter().flatten().all(|&(left, _)| left > 0));
        }
    }
}
