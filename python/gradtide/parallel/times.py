"""Op times that the user supplies in a table, in place of roofline times.

A row names an op (`layers.3.attn`) or a whole block (`layers.3`); `*` in a name matches any number. The time of a whole
block is distributed over its ops in proportion to their roofline times. All times are per rank and micro-batch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradtide.parallel.costs import Costs, OpTimes

MOST_NAMES = 5
"""Largest number of ops listed in a message."""


class OwnTime(NamedTuple):
    """A row of the user's table. Times are in seconds, and None if the row leaves them out."""

    name: str
    forward: float
    backward: float
    recompute: float | None = None
    update: float | None = None


class Problem(NamedTuple):
    """A fault in the user's table; `row` is the index of the faulty row, or None if the whole table is at fault."""

    row: int | None
    msg: str
    hint: str


def named_blocks(costs: Costs) -> list[tuple[str, tuple[OpTimes, ...]]]:
    """Return every block of a model with its ops, in the order of the model."""
    inner = [(f"layers.{index}", costs.block(block)) for index, block in enumerate(costs.model.blocks)]
    return [("embed", costs.embedding()), *inner, ("head", costs.head())]


def op_names(block: str, ops: Sequence[str]) -> list[str]:
    """Return the user-visible names of the ops of a block; the only op of a block has the name of the block."""
    return [block] if len(ops) == 1 else [f"{block}.{op}" for op in ops]


@dataclass(frozen=True)
class OwnTimes:
    """The user's times of every op of a model.

    Attributes:
        source: origin of the times, shown to users.
        rows: the row that applies to each op, by the op's name.
        has_recompute: whether any row has a recomputation time.
        has_updates: whether any row has an optimizer time.
    """

    source: str
    rows: Mapping[str, OwnTime]
    has_recompute: bool
    has_updates: bool

    @classmethod
    def read(cls, source: str, rows: Sequence[OwnTime], costs: Costs) -> tuple["OwnTimes", list[Problem]]:
        """Return the times and the problems: rows that match no op, and ops with no row or with two rows."""
        blocks = [(block, op_names(block, [op.name for op in ops])) for block, ops in named_blocks(costs)]
        known = list(dict.fromkeys(name for block, names in blocks for name in (block, *names)))
        found: dict[str, OwnTime] = {}
        problems: list[Problem] = []
        for index, row in enumerate(rows):
            is_named = re.compile(r"\d+".join(map(re.escape, row.name.split("*")))).fullmatch
            own = [name for block, names in blocks for name in names if is_named(block) or is_named(name)]
            taken = next((name for name in own if name in found), None)
            if not own:
                problems.append(Problem(index, f"the model has no op `{row.name:.80}`", f"there are {_listed(known)}"))
            elif taken is not None:
                problems.append(Problem(index, f"`{taken}` has times already", "delete one of the two rows"))
            found.update(dict.fromkeys(own, row))
        missing = [name for _, names in blocks for name in names if name not in found]
        if missing:
            ops = "an op has no times" if len(missing) == 1 else f"{len(missing):,} ops have no times"
            hint = 'write a row for each; "layers.*" stands for every layer'
            problems.append(Problem(None, f"{ops}: {_listed(missing)}", hint))
        has_recompute = any(row.recompute is not None for row in rows)
        return cls(source, found, has_recompute, any(row.update is not None for row in rows)), problems

    def of_block(self, block: str, ops: Sequence[OpTimes]) -> tuple[OpTimes, ...]:
        """Return the ops of a block with the user's times."""
        own = [self.rows[name] for name in op_names(block, [op.name for op in ops])]
        pairs = list(zip(own, ops, strict=True))
        return tuple(self._timed(op, row, [other for one, other in pairs if one == row]) for row, op in pairs)

    def updates(self, names: Sequence[str]) -> list[float]:
        """Return the optimizer time of each op in seconds. A row for several ops counts only for the first of them."""
        rows = [self.rows[name] for name in names]
        return [0.0 if row in rows[:index] else row.update or 0.0 for index, row in enumerate(rows)]

    def _timed(self, op: OpTimes, row: OwnTime, sharing: Sequence[OpTimes]) -> OpTimes:
        """Return the op with its share of the times of `row`; the ops in `sharing` divide the row's times."""

        def part(whole: float, own: float, all_own: float) -> float:
            return whole * own / all_own if all_own else whole / len(sharing)

        forward = part(row.forward, op.forward, sum(one.forward for one in sharing))
        backward = part(row.backward, op.backward, sum(one.backward for one in sharing))
        if not self.has_recompute:
            recompute = op.recompute * forward / op.forward if op.forward else 0.0
        else:
            recompute = part(row.recompute or 0.0, op.recompute, sum(one.recompute for one in sharing))
        factors = [own / whole if whole else 0.0 for own, whole in ((forward, op.forward), (backward, op.backward))]
        beside = (op.beside[0].scaled(factors[0]), op.beside[1].scaled(factors[1]))
        return op._replace(forward=forward, backward=backward, recompute=recompute, beside=beside)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
