"""Writes a step of a job as Chakra traces for ASTRA-sim: one file per rank, and one file of process groups.

A node of a rank's file is a compute op or the rank's part of a transfer. `data_deps` lists all dependencies of a node,
including the preceding op of the rank, because ASTRA-sim's readers use this field. A message has a send node on its
sender and a receive node on its receiver, matched by `comm_tag`. If every rank of a ring sends to the next rank
(context parallelism), each rank has both nodes.

`comm_size` is a rank's input, as in ASTRA-sim: its shard for an all-gather, the whole buffer for all other collectives.
Groups are numbered from 1, because ASTRA-sim uses 0 for all ranks.

Sources: MLCommons Chakra, `et_def.proto`; ASTRA-sim, `workload/Workload.cc` (which attributes it reads, and that
`--comm-group-configuration` maps numbers of groups to ranks) and `Ring.cc` (sizes).
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from gradtide import _core
from gradtide.errors import TraceError, cannot_write
from gradtide.files import write_whole
from gradtide.traces.files import GROUPS
from gradtide.units import PS_PER_NS

MAX_NODES = 50_000_000
"""Largest number of nodes in all files together; a node takes about 100 bytes."""


class StepFiles:
    """Converts the graph of a step to Chakra files.

    A class of the graph is a set of consecutive ranks that run the same ops. A group of the graph describes all process
    groups of one kind, such as those of tensor parallelism, by their size and rank stride.

    Args:
        document: graph in the form that `step_graph` of the core and `Trace.graph` return.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.classes: list[dict[str, Any]] = document["classes"]
        self.groups: list[dict[str, Any]] = document["groups"]
        self.transfers: list[dict[str, Any]] = document["transfers"]
        counts = [len(one["ops"]) for one in self.classes]
        self._first_op = [sum(counts[:index]) for index in range(len(counts) + 1)]
        ranks = [one["ranks"] for one in self.classes]
        self._first_rank = [sum(ranks[:index]) for index in range(len(ranks) + 1)]
        self._members: dict[tuple[int, int], list[int]] = {}
        self._waits: dict[int, list[int]] = {}
        for before, after in document["edges"]:
            self._waits.setdefault(after, []).append(before)

    def save(self, path: Path, rank: int | None = None, version: str = "0.0.4") -> list[Path]:
        """Write the step as Chakra traces.

        Args:
            path: `NAME.et`. The files are `NAME.0.et` and so on, and `NAME.groups.json`.
            rank: write only this rank, to `NAME.et`. Default: all ranks.
            version: Chakra schema version of the files.

        Returns:
            The files that were written.

        Raises:
            TraceError: if there is no such rank, the files would be too large, or a file cannot be written.
        """
        if rank is None and self.node_count > MAX_NODES:
            raise TraceError(f"{self.ranks:,} ranks have {self.node_count:,} nodes; write one with --rank")
        if rank is not None and rank >= self.ranks:
            raise TraceError(f"there is no rank {rank}; there are {self.ranks}, from 0 on")
        targets = (
            {path: rank} if rank is not None else {path.with_suffix(f".{one}.et"): one for one in range(self.ranks)}
        )
        groups = path.with_suffix(GROUPS)
        try:
            for target, one in targets.items():
                write_whole(target, self.chakra(one, version))
            write_whole(groups, self.comm_groups().encode())
        except OSError as error:
            raise cannot_write(path, error) from error
        return [*targets, groups]

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return sum(int(one["ranks"]) for one in self.classes)

    @property
    def node_count(self) -> int:
        """Upper bound of the number of nodes in all files."""
        transfers = len(self.transfers) + len(self._rings)
        return sum(one["ranks"] * (len(one["ops"]) + transfers) for one in self.classes)

    def members(self, group: int, rank: int) -> list[int]:
        """Return the ranks of the process group that contains `rank`; `group` is an index into `groups`."""
        if (group, rank) not in self._members:
            self._members[group, rank] = self._found_members(group, rank)
        return self._members[group, rank]

    def _found_members(self, group: int, rank: int) -> list[int]:
        kind = self.groups[group]
        firsts = [self._first_rank[one] for one in kind["classes"]]
        own = next(one for one in kind["classes"] if self._first_rank[one] <= rank < self._first_rank[one + 1])
        if kind["stride"] is None:
            return [first + rank - self._first_rank[own] for first in firsts]
        everybody = [
            rank for one in kind["classes"] for rank in range(self._first_rank[one], self._first_rank[one + 1])
        ]
        size, stride = kind["ranks"], kind["stride"]
        place = everybody.index(rank)
        first = place // (size * stride) * size * stride + place % stride
        return [everybody[first + step * stride] for step in range(size)]

    @cached_property
    def numbers(self) -> dict[tuple[int, tuple[int, ...]], int]:
        """Numbers of process groups with collectives, from 1, by (index into `groups`, ranks)."""
        found: dict[tuple[int, tuple[int, ...]], int] = {}
        collective_groups = {one["group"] for one in self.transfers if one["kind"] != "send"}
        for group, kind in enumerate(self.groups):
            if group not in collective_groups:
                continue
            for one in kind["classes"]:
                for rank in range(self._first_rank[one], self._first_rank[one + 1]):
                    found.setdefault((group, tuple(self.members(group, rank))), len(found) + 1)
        return found

    def comm_groups(self) -> str:
        """Return the content of the file for ASTRA-sim's `--comm-group-configuration`."""
        lines = [f'"{number}": {json.dumps(ranks)}' for (_, ranks), number in self.numbers.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def chakra(self, rank: int, version: str) -> bytes:
        """Return the content of a rank's file."""
        own = next(index for index in range(len(self.classes)) if rank < self._first_rank[index + 1])
        rows = [*self._computed(own), *self._moved(own, rank)]
        document = {"schema": "gradtide.trace/1", "rank": rank, "world_size": self.ranks, "target": 0, "ops": rows}
        return _core.Trace.from_dag(json.dumps(document)).to_chakra(rank, version)

    def _computed(self, own: int) -> Iterator[dict[str, Any]]:
        first, last = self._first_op[own], self._first_op[own + 1]
        for op, (name, time_ps) in zip(range(first, last), self.classes[own]["ops"], strict=True):
            before = [op - 1] if op > first else []
            yield _row(op, name, "comp", [*before, *self._inputs(op, own)], -(-time_ps // PS_PER_NS))

    def _moved(self, own: int, rank: int) -> Iterator[dict[str, Any]]:
        for index, transfer in enumerate(self.transfers):
            classes = self.groups[transfer["group"]]["classes"]
            if own not in classes:
                continue
            op = self._first_op[-1] + index
            members = self.members(transfer["group"], rank)
            comm: dict[str, Any] = {"collective": None, "bytes": transfer["bytes"], "group": "", "ranks": None}
            if transfer["kind"] == "send":
                comm["tag"] = index + 1
                is_ring = op in self._rings
                for node, ends in _ends(members, rank, is_ring=is_ring):
                    held = self._inputs(op, own) if node == "send" else []
                    number = self._received(op) if is_ring and node == "recv" else op
                    yield _row(number, transfer["name"], node, held, 0, comm | {"ends": ends})
                continue
            size = transfer["bytes"]
            if transfer["kind"] == "all_gather":
                size = -(-size // len(members))
            number = self.numbers[transfer["group"], tuple(members)]
            comm |= {"collective": transfer["kind"], "bytes": size, "group": str(number), "ends": None}
            yield _row(op, transfer["name"], "coll", self._inputs(op, own), 0, comm)

    def _inputs(self, op: int, own: int) -> list[int]:
        """Return the dependencies of an op that are nodes in the files of class `own`."""
        found = [before for before in self._waits.get(op, ()) if self._is_in(before, own)]
        return found + [self._received(before) for before in found if before in self._rings]

    def _received(self, op: int) -> int:
        """Return the id of a ring transfer's receive node; `op` is the id of its send node on the same rank."""
        return op + len(self.transfers)

    @cached_property
    def _rings(self) -> set[int]:
        """Ids of the transfers in which every rank of a group sends to the next rank."""
        return {
            self._first_op[-1] + index
            for index, transfer in enumerate(self.transfers)
            if transfer["kind"] == "send" and len(self.groups[transfer["group"]]["classes"]) == 1
        }

    def _is_in(self, op: int, own: int) -> bool:
        if op < self._first_op[-1]:
            return self._first_op[own] <= op < self._first_op[own + 1]
        return own in self.groups[self.transfers[op - self._first_op[-1]]["group"]]["classes"]


def _ends(members: list[int], rank: int, *, is_ring: bool) -> Iterator[tuple[str, list[int]]]:
    """Yield (`send` or `recv`, [sender, receiver]) for each node of a rank in a message or ring transfer."""
    if not is_ring:
        yield ("send" if rank == members[0] else "recv"), members
        return
    place = members.index(rank)
    yield "send", [rank, members[(place + 1) % len(members)]]
    yield "recv", [members[place - 1], rank]


def _row(op: int, name: str, node: str, inputs: Sequence[int], time_ns: int, comm: Any = None) -> dict[str, Any]:
    kind = "recv" if node in ("recv", "coll") else "comp"
    row = {"id": op, "name": name, "kind": kind, "node": node, "inputs": sorted(set(inputs)), "ctrl_inputs": 0}
    return row | {"time": time_ns, "start": 0, "is_host": False} | ({} if comm is None else {"comm": comm})
