"""Caramel (2020): how many of its statements hold, over values of what the paper leaves open.

Usage: python validation/caramel.py [--page]   how many statements agree in each setting; a quarter of an hour

In each setting the two values of the host are fitted again, to the same two sentences as in
`gradtide.papers.caramel2020`.
So no setting is fitted to the statements that are counted. With --page the table is written into
docs/validation/caramel2020.md.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from pages import PAGES, aligned, put

from gradtide import run
from gradtide.papers import caramel2020 as caramel
from gradtide.papers.harness import Check
from gradtide.scenario import Scenario

PAGE = PAGES / "caramel2020.md"
BASE = Scenario.load(caramel.PAPER["preset"])

WAITS_MS = (0.3, 1.0, 2.0, 4.0, 8.0)
"""Times that a transfer waits before its first byte, in milliseconds; `paper/caramel2020` has 1 ms."""
LINKS = ("10Gbps", "100Gbps")
"""Rates of a link. At the faster one the link takes little time of its own, as if it streamed beside a stage of the
host."""
UTILISATION, SLOWER = 0.68, 3.0
"""Targets of the fit: utilisation of Horovod (section 6.2), and time at depth 8 over that at depth 1 (section 4.4)."""
FEWEST, MOST = 1.0, 40.0
"""Bounds of a stage's rate, Gbit/s."""
CHEAPEST, DEAREST = 0.3, 400.0
"""Bounds of the cost of a message, microseconds."""


@dataclass(frozen=True)
class Setting:
    """Values that the paper does not state.

    Attributes:
        waits_ms: wait before the first byte of a transfer, or the sum of the waits of two steps.
        of_steps: whether each step of a collective waits, instead of the transfer as a whole.
        link: rate of a link.
    """

    waits_ms: float
    of_steps: bool
    link: str

    def made(self, stage_gbps: float, message_us: float) -> Callable[[caramel.Case, Scenario], Scenario]:
        """Return the change that applies this setting, and these two values of the host, to the scenario of a case."""
        waits = {"overhead": "0s", "host_latency": f"{self.waits_ms / 2:.4f}ms"}
        if not self.of_steps:
            waits = {"overhead": f"{self.waits_ms:.4f}ms"}
        stages = dict.fromkeys(("host_copy", "host_serialise", "host_receive"), f"{stage_gbps:.3f}Gbps")
        keys = {**waits, **stages, "host_message": f"{message_us:.2f}us", "link_rate": self.link}
        return lambda _case, whole: whole.replace(**keys)

    def slower(self, stage_gbps: float, message_us: float) -> float:
        """Return the time of 1 kB at depth 8, divided by its time at depth 1."""
        study = self.study([(("shuffle", depth, caramel.SMALL), 16, 0) for depth in (1, 8)], stage_gbps, message_us)
        deep, whole = (study.transfer_ms("shuffle", depth, caramel.SMALL, 16) for depth in (8, 1))
        return deep / whole

    def utilisation(self, stage_gbps: float, message_us: float) -> float:
        """Return the utilisation of Horovod on Inception-v3 with 8 workers."""
        what = caramel.HOROVOD, caramel.INCEPTION
        cases = [(what, 8, seed) for seed in range(caramel.SEEDS)]
        return self.study(cases, stage_gbps, message_us).figures(*what, 8)["utilisation"]

    def study(self, cases: list[caramel.Case], stage_gbps: float, message_us: float) -> caramel.Study:
        """Run cases in this setting."""
        made = self.made(stage_gbps, message_us)
        return caramel.Study(BASE, {case: run(made(case, caramel.scenario(BASE, case))) for case in cases})

    def fitted(self) -> tuple[float, float]:
        """Return the two fitted values of the host: rate of a stage in Gbit/s, cost of a message in microseconds."""
        # Stages take almost no time for 1 kB, so `slower` does not depend on their rate.
        message_us = root(lambda cost: self.slower(MOST, cost), SLOWER, CHEAPEST, DEAREST)
        stage_gbps = root(lambda rate: self.utilisation(rate, message_us), UTILISATION, FEWEST, MOST)
        return stage_gbps, message_us


def root(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return the argument at which a rising function has the value `wanted`, within 1 %."""
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return math.sqrt(low * high)


def checks_of(setting: Setting, stage_gbps: float, message_us: float) -> list[Check]:
    """Return the checks of the paper's predicted statements in a setting."""
    changed = caramel.STATEMENTS.changed(setting.made(stage_gbps, message_us))
    checks = changed.make(2, None).summary["checks"]
    return [one for one in checks if one["verdict"] in ("agrees", "differs")]


def _column(link: str, of_steps: bool) -> str:
    return f"{'two steps' if of_steps else 'transfer'}, {link.replace('Gbps', ' Gbit/s')}"


def main() -> None:
    """Print the table and the statements that agree in no setting, or write them into their page."""
    cells: dict[tuple[str, bool], list[str]] = {}
    ever: dict[str, bool] = {}
    for link, of_steps, waits_ms in product(LINKS, (False, True), WAITS_MS):
        setting = Setting(waits_ms, of_steps, link)
        stage_gbps, message_us = setting.fitted()
        found = {
            f"{one['quantity']} (fig. {one['figure']})": one["verdict"] == "agrees"
            for one in checks_of(setting, stage_gbps, message_us)
        }
        ever |= {name: agrees or ever.get(name, False) for name, agrees in found.items()}
        cells.setdefault((link, of_steps), []).append(f"{sum(found.values())} ({stage_gbps:.1f}, {message_us:.0f})")
        print(f"{waits_ms:g} ms, {_column(link, of_steps)}: {cells[link, of_steps][-1]} of {len(found)}", flush=True)
    settings = [[f"{wait:g}", *(column[row] for column in cells.values())] for row, wait in enumerate(WAITS_MS)]
    rows = [aligned([["wait, ms", *(_column(*of) for of in cells)], *settings])]
    never = [name for name, agrees in ever.items() if not agrees]
    rows += ["", f"{len(never)} statements agree in no setting: {'; '.join(never)}."]
    if "--page" in sys.argv:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), "settings", "\n".join(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
