"""Properties of collective algorithms for the Python modules. The algorithms themselves are in the core."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """Properties of a collective algorithm.

    Attributes:
        title: name of the algorithm in a sentence.
        operation: the collective operation, as in `all_reduce`.
        keys: keys of `job.NAME.collective` that apply only to this algorithm.
        is_ring: whether the algorithm is a ring all-reduce.
        uses_all_cards: whether the algorithm uses all network cards of nodes with several ranks.
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
        """Whether ranks add received data to their own."""
        return self.operation in ("all_reduce", "reduce_scatter")
