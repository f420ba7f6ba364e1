"""Tests causes of differences: changes one key of a paper's set-up, and prints the statements that this changes.

Usage: python validation/causes.py [PAPER...]   prints a Markdown row for each changed statement

A change shows what a difference depends on. It is no claim about the authors' set-up, and nothing is fitted.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradtide.papers import caramel2020 as caramel
from gradtide.papers import gao2020_ch5 as gao
from gradtide.papers import pcn
from gradtide.papers import tictac2019 as tictac
from gradtide.scenario import Scenario

Case = Any
"""A case of the paper; its type depends on the paper."""


@dataclass(frozen=True)
class Change:
    """A change for the statements of one figure: a description, and the function that changes a case's scenario."""

    figure: str
    words: str
    made: Callable[[Case, Scenario], Scenario]


def everywhere(**keys: Any) -> Callable[[Case, Scenario], Scenario]:
    """Change keys of every run, given by short names."""
    return lambda _case, whole: whole.replace(**keys)


def of_systems(*systems: str, **keys: Any) -> Callable[[Case, Scenario], Scenario]:
    """Change keys of the runs of these systems: Caramel or its rivals."""
    return lambda case, whole: whole.replace(**keys) if case[0][0] in systems else whole


def of_orders(*orders: str, **keys: Any) -> Callable[[Case, Scenario], Scenario]:
    """Change keys of the runs with these orders of pulls."""
    return lambda case, whole: whole.replace(**keys) if case.order in orders else whole


def with_setup(rounds: int) -> Callable[[Case, Scenario], Scenario]:
    """Let bursts wait for this number of round trips before their first byte."""
    base = Scenario.load(pcn.PAPER["preset"])
    return lambda case, _whole: pcn.scenario(base, replace(case, setup_rounds=rounds))


SERVERS = caramel.SERVERS, caramel.HALF
STEPS = caramel.ADAPTIVE, caramel.BATCHED
IN_GRAPH = *STEPS, caramel.CARAMEL
ENFORCED = tictac.TIC, tictac.TAC, tictac.REVERSED


def stages(rate: str | None) -> dict[str, str | None]:
    """Return keys that set the rate of every stage of a host."""
    return dict.fromkeys(("host_copy", "host_serialise", "host_receive"), rate)


CHANGES: dict[str, list[Change]] = {
    "caramel": [
        Change("10", "pulls in TAC's order", of_systems(*SERVERS, order="tac")),
        Change("10", "Caramel's transfers wait 4 ms, a message costs 60 us",
               of_systems(caramel.CARAMEL, overhead="4ms", host_message="60us")),
        Change("11", "no transfer before the last gradient", of_systems(*STEPS, fusion="1GB", credit=1)),
        Change("11", "Caramel's stages at 2.3 Gbit/s", of_systems(*IN_GRAPH, **stages("2.3Gbps"))),
        Change("11", "Caramel's messages cost 200 us", of_systems(*IN_GRAPH, host_message="200us")),
        Change("13", "a link of 1 Tbit/s", everywhere(link_rate="1Tbps")),
        Change("13", "a transfer waits 0.7 ms", everywhere(overhead="700us")),
        Change("14", "no stages", everywhere(**stages(None))),
        Change("14", "each message waits 2 ms, not each transfer", everywhere(overhead="0s", host_latency="1ms")),
        Change("14", "depth 1", everywhere(depth=1)),
    ],
    "tictac": [
        Change("9", "links of 80 Gbit/s", everywhere(link_rate="80Gbps")),
        Change("9", "links of 2.5 Gbit/s", everywhere(link_rate="2.5Gbps")),
        Change("14", "orders are kept to the letter", of_orders(*ENFORCED, disorder=0.0)),
        Change("14", "a tenth as many pulls out of order", of_orders(tictac.TIC, disorder=0.0005)),
    ],
    "gao2020/ch5": [
        Change(figure, f"links of {delay_ns} ns", everywhere(link_delay=f"{delay_ns}ns"))
        for figure in ("5.6", "5.16")
        for delay_ns in (9998, 9999, 10001, 10002)
    ],
    "pcn": [
        Change("9a", f"{rounds} round trips until the first byte", with_setup(rounds)) for rounds in (3, 4, 6)
    ],
}  # fmt: skip


STATEMENTS: dict[str, Any] = {
    "caramel": caramel.STATEMENTS, "tictac": tictac.STATEMENTS, "gao2020/ch5": gao.STATEMENTS, "pcn": pcn.STATEMENTS
}  # fmt: skip


def show(paper: str, jobs: int = 2) -> None:
    """Print the statements of a paper whose values change."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in CHANGES[paper]:
        if one.figure not in found:
            found[one.figure] = STATEMENTS[paper].make(jobs, None, one.figure).summary["checks"]
        after = STATEMENTS[paper].changed(one.made).make(jobs, None, one.figure).summary["checks"]
        for old, new in zip(found[one.figure], after, strict=True):
            if old["ours"] != new["ours"] and old["verdict"] != "shown":
                cells = [one.figure, old["quantity"], old["published"], old["ours"], one.words, new["ours"]]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CHANGES:
        show(name)
