//! Pipeline parallelism: the schedule of micro-batches on each stage, and the sends between stages.
//!
//! A *turn* is the forward or backward pass of one micro-batch through one virtual stage. Sends do not block: each pair
//! of stages has a communicator per direction, and the sender continues immediately. Differs from Megatron's 1F1B
//! without interleaving, which waits for its sends in pairs. Without sequence parallelism, all ranks of a
//! tensor-parallel group have the same activations. Each rank can therefore send one part of them, and the receivers
//! gather the parts (Narayanan et al. 2021, section 4.1).
//!
//! | schedule | turns of stage i of p, m micro-batches, v virtual stages on each |
//! |---|---|
//! | GPipe | all forward, then all backward, in the same order |
//! | 1F1B | p-i-1 forward; alternately one forward and one backward; the remaining backward |
//! | interleaved | as 1F1B after 2(p-i-1) + (v-1)p forward turns; each virtual stage in turn takes p micro-batches |
//!
//! The bubble is (p-1)/m of the compute time of a stage, or (p-1)/(mv) with interleaving.
//!
//! # Source
//! Huang et al. (2019), GPipe; Narayanan et al. (2021), section 2.2; orders as in Megatron-LM.

use super::state::Node;
use super::writer::Writer;
use super::{Label, Phase, Subject};
use crate::collective::levels::CollectiveKind;
use crate::spec::{ParallelSpec, PipelineSpec};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// A pass of a micro-batch through a virtual stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub direction: Direction,
    pub stage: u32,
    pub micro_batch: u32,
}

impl Turn {
    pub fn phase(self) -> Phase {
        match self.direction {
            Direction::Forward => Phase::Forward,
            Direction::Backward => Phase::Backward,
        }
    }
}

/// Returns the turns of a class in their order.
pub(super) fn turns(spec: &ParallelSpec, class: u32) -> Vec<Turn> {
    let (pp, micro_batches) = (spec.mesh.pp, spec.micro_batches);
    let chunks = spec.stages.len() as u32 / pp;
    let total = micro_batches * chunks;
    // Number of forward turns before the first backward turn.
    let ahead = match spec.pipeline {
        // Without a pipeline, micro-batches are plain gradient accumulation.
        _ if pp == 1 => 0,
        PipelineSpec::Gpipe => total,
        PipelineSpec::Interleaved { chunks: 2.. } => 2 * (pp - class - 1) + (chunks - 1) * pp,
        PipelineSpec::OneFOneB | PipelineSpec::Interleaved { .. } => pp - class - 1,
    };
    let ahead = ahead.min(total);
    let turn = |direction, count: u32| {
        // With one virtual stage per rank, its micro-batches are consecutive. With several, the rank changes the
        // virtual stage after every `pp` micro-batches.
        let round = if chunks == 1 { micro_batches } else { pp };
        let (chunk, place) = (count / round % chunks, count % round);
        let chunk = if direction == Direction::Forward { chunk } else { chunks - 1 - chunk };
        Turn { direction, stage: chunk * pp + class, micro_batch: count / (round * chunks) * round + place }
    };
    let forward = |count| turn(Direction::Forward, count);
    let backward = |count| turn(Direction::Backward, count);
    let warm_up = (0..ahead).map(forward);
    let steady = (ahead..total).flat_map(|count| [forward(count), backward(count - ahead)]);
    warm_up.chain(steady).chain((total - ahead..total).map(backward)).collect()
}

/// Transfers between virtual stages: one for each direction, boundary between stages, and micro-batch.
pub(super) struct Sends {
    first: u32,
    boundaries: u32,
    micro_batches: u32,
}

impl Sends {
    /// Writes all transfers. Their dependencies are written with the programs.
    pub fn new(writer: &mut Writer<'_>) -> Self {
        let spec = writer.spec;
        let boundaries = spec.stages.len() as u32 - 1;
        // With sequence parallelism each rank sends its own part of the activations. Without it every rank sends all of
        // them, unless the receivers gather parts.
        let parts = if spec.sequence_parallel || spec.scatter_gather { spec.mesh.tp } else { 1 };
        let bytes = spec.activation_bytes.div_ceil(u64::from(parts));
        let mut first = None;
        for phase in [Phase::Forward, Phase::Backward] {
            for boundary in 0..boundaries {
                let (below, above) = (boundary % spec.mesh.pp, (boundary + 1) % spec.mesh.pp);
                let (stage, group) = match phase {
                    Phase::Forward => (boundary, writer.groups.link(below, above)),
                    _ => (boundary + 1, writer.groups.link(above, below)),
                };
                for micro_batch in 0..spec.micro_batches {
                    let label = Label { subject: Subject::Stage(stage), phase, micro_batch };
                    let sent = writer.transfer(group, CollectiveKind::Send, bytes, label, &[]);
                    first.get_or_insert(sent);
                }
            }
        }
        let first = if let Some(Node::Transfer(first)) = first { first } else { 0 };
        Self { first, boundaries, micro_batches: spec.micro_batches }
    }

    /// Returns the transfer of a turn over the boundary between the virtual stages `boundary` and `boundary` + 1.
    fn over(&self, boundary: u32, turn: Turn) -> Node {
        let direction = u32::from(turn.direction == Direction::Backward);
        let row = direction * self.boundaries + boundary;
        Node::Transfer(self.first + row * self.micro_batches + turn.micro_batch)
    }

    /// Returns the transfer for which a turn waits.
    fn received(&self, turn: Turn) -> Option<Node> {
        let boundary = match turn.direction {
            Direction::Forward => turn.stage.checked_sub(1),
            Direction::Backward => Some(turn.stage).filter(|&stage| stage < self.boundaries),
        };
        boundary.map(|boundary| self.over(boundary, turn))
    }

    /// Returns the transfer that a turn sends.
    fn sent(&self, turn: Turn) -> Option<Node> {
        let boundary = match turn.direction {
            Direction::Forward => Some(turn.stage).filter(|&stage| stage < self.boundaries),
            Direction::Backward => turn.stage.checked_sub(1),
        };
        boundary.map(|boundary| self.over(boundary, turn))
    }
}

impl Writer<'_> {
    /// Writes a turn through the units of a virtual stage.
    pub fn turn(&mut self, turn: Turn, sends: &Sends) {
        let mut units = self.units_of(turn.stage);
        if turn.direction == Direction::Backward {
            units.reverse();
        }
        for (index, &unit) in units.iter().enumerate() {
            self.gather_ahead(&units, index, turn);
            if let (0, Some(received)) = (index, sends.received(turn)) {
                self.front.push(received);
                if self.spec.scatter_gather && !self.spec.sequence_parallel {
                    let label = Label {
                        subject: Subject::Stage(turn.stage),
                        phase: turn.phase(),
                        micro_batch: turn.micro_batch,
                    };
                    self.exchange(self.own().tensor, CollectiveKind::AllGather, self.spec.activation_bytes, label);
                }
            }
            self.await_parameters(unit);
            let mut blocks = self.units[unit as usize].clone();
            match turn.direction {
                Direction::Forward => blocks.for_each(|block| self.forward(block, turn.micro_batch)),
                Direction::Backward => {
                    while let Some(block) = blocks.next_back() {
                        self.backward(block, turn.micro_batch);
                    }
                    self.reduce_unit(unit, turn);
                }
            }
            self.free(unit, turn);
        }
        if let Some(sent) = sends.sent(turn) {
            for index in 0..self.front.len() {
                self.within(self.front[index], sent);
            }
        }
        if turn.direction == Direction::Backward {
            self.end_backward(turn);
        }
    }

    /// Returns the units of the class that is being written, from the input side.
    pub fn class_units(&self) -> Vec<u32> {
        let stages = (self.class..self.stages.len() as u32).step_by(self.spec.mesh.pp as usize);
        stages.flat_map(|stage| self.units_of(stage)).collect()
    }

    fn units_of(&self, stage: u32) -> Vec<u32> {
        let blocks = &self.stages[stage as usize];
        let is_on_it = |&unit: &u32| blocks.contains(&self.units[unit as usize].start);
        (0..self.units.len() as u32).filter(is_on_it).collect()
    }
}
