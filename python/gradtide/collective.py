"""What is known of a collective algorithm outside the core."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """Properties of an algorithm.

    Attributes:
        title: its name in a sentence.
        operation: what ranks end up with, as in `all_reduce`.
        keys: keys of `job.NAME.collective` that belong to it.
        is_ring: whether it is one ring all-reduce.
        uses_all_cards: whether it uses all network cards of nodes with several ranks.
        needs_even_nodes: whether every node must have the same number of ranks.
    """

    title: str
    operation: str
    keys: tuple[str, ...] = ()
    is_ring: bool = False
    uses_all_cards: bool = False
    needs_even_nodes: bool = False

    @property
    def sums(self) -> bool:
        """Whether every rank ends up with the sum over all ranks, as data-parallel training needs for gradients."""
        return self.operation == "all_reduce"

    @property
    def reduces(self) -> bool:
        """Whether ranks add what they receive to their own."""
        return self.operation in ("all_reduce", "reduce_scatter")
