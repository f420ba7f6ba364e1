"""The collective algorithms: names and properties. Made by tools/generate.py from the core."""

from typing import Literal

from gradtide.collective import Algorithm

CollectiveKind = Literal[
    "ring",
    "single_ring",
    "halving_doubling",
    "shuffle",
    "tree",
    "binary_tree",
    "butterfly",
    "butterfly_layered",
    "hierarchical",
    "ps",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "point_to_point",
]
"""Names of the algorithms, the values of `collective.kind`."""

ALGORITHMS: dict[CollectiveKind, Algorithm] = {
    "ring": Algorithm("ring", "all_reduce", is_ring=True, uses_all_cards=True),
    "single_ring": Algorithm("single ring", "all_reduce", is_ring=True),
    "halving_doubling": Algorithm("halving-doubling", "all_reduce"),
    "shuffle": Algorithm("shuffle", "all_reduce"),
    "tree": Algorithm("tree", "all_reduce", uses_all_cards=True, needs_even_nodes=True),
    "binary_tree": Algorithm("binary tree", "all_reduce"),
    "butterfly": Algorithm("flat butterfly", "all_reduce"),
    "butterfly_layered": Algorithm("layered butterfly", "all_reduce", keys=("group",)),
    "hierarchical": Algorithm("hierarchical", "all_reduce", keys=("group", "inside")),
    "ps": Algorithm("parameter servers", "all_reduce", keys=("ps",)),
    "all_gather": Algorithm("all-gather", "all_gather", uses_all_cards=True),
    "reduce_scatter": Algorithm("reduce-scatter", "reduce_scatter", uses_all_cards=True),
    "all_to_all": Algorithm("all-to-all", "all_to_all"),
    "broadcast": Algorithm("broadcast", "broadcast"),
    "point_to_point": Algorithm("point_to_point", "send"),
}
