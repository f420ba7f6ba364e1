"""Gao (2020), chapter 3: the compute times from which the thesis's simulations start.

Table 3.1 is simulated on a P100-PCIe whose efficiency was calibrated with fig. 3.5, which has other mini-batches. The
arithmetic of the table is checked as well. The thesis counts 180 modules of ResNet-50, which its hooks recorded, but
only 107 have parameters. Its statements about the first 80 and the last 30 modules are therefore checked for the same
shares of our layers.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gradtide.layers import Layer
from gradtide.papers.harness import (
    FITTED,
    Claim,
    Drawn,
    Figure,
    Said,
    Statements,
    changed,
    chart,
    judged,
    line,
    published,
    table,
    value,
)
from gradtide.scenario import Scenario
from gradtide.studies.result import RunResult

PAPER = published(__name__)
NOTES = PAPER["notes"]
P100, T4 = PAPER["table_3_1"]["P100"], PAPER["table_3_1"]["T4"]
STAGES: dict[str, float] = {name: float(np.mean(values)) for name, values in PAPER["stages"].items()}

# A case is (device, mini-batch).
Case = tuple[str, int]
PCIE, PCIE_32, TESLA_T4 = ("P100-PCIe", 128), ("P100-PCIe", 32), ("T4", 256)
CPU = ("Xeon-E5-2686v4", 32)
CPU_S = 3.0
"""Iteration time in seconds on the CPU in the thesis, which does not name the CPU."""
MODULES, FEW, MOST = 180, 80, 150
"""Of the thesis's 180 modules, those before index 80 have very few parameters, and those from index 150 on have the
most."""


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    device, batch = case
    return base.replace(device=device, batch=batch)


class Study:
    """The finished runs, by case."""

    def __init__(self, base: Scenario, results: Mapping[Case, RunResult]) -> None:
        self.base = base
        self.results = results

    def time_s(self, case: Case) -> float:
        """Return the iteration time in seconds."""
        return self.results[case].iteration_time

    def layers(self, case: Case) -> Sequence[Layer]:
        """Return the layers of a case."""
        return scenario(self.base, case).jobs[0].layers

    def without_convolutions(self) -> list[Layer]:
        """Return the layers that the thesis computed on its CPU (no convolutions), with times that sum to `CPU_S`."""
        rest = [row for row in self.layers(CPU) if "conv" not in row.name and "downsample.0" not in row.name]
        scale = CPU_S * 1e12 / sum(row.forward_ps + row.backward_ps for row in rest)
        return [
            row._replace(forward_ps=round(row.forward_ps * scale), backward_ps=round(row.backward_ps * scale))
            for row in rest
        ]


def _thirds(layers: Sequence[Layer]) -> list[Sequence[Layer]]:
    """Split the layers at the same shares as the thesis: very few parameters, more parameters, most parameters."""
    few, most = (round(len(layers) * at / MODULES) for at in (FEW, MOST))
    return [layers[:few], layers[few:most], layers[most:]]


def _forward_ms(layers: Iterable[Layer]) -> list[float]:
    return [row.forward_ps / 1e9 for row in layers]


def _backward_ms(layers: Iterable[Layer]) -> list[float]:
    return [row.backward_ps / 1e9 for row in layers]


# -- statements -------------------------------------------------------------------------------------------------------


def _table_values() -> dict[str, float]:
    """Return the results of equation 3.1 and of the thesis's ratios, for the numbers printed in table 3.1."""
    p100_s, t4_s = (gpu["minibatch"] / gpu["images_per_s"] for gpu in (P100, T4))
    compute, times = P100["gflops"] / T4["gflops"], t4_s / p100_s
    return {
        "equation 3.1, P100": p100_s,
        "equation 3.1, T4": t4_s,
        "compute ratio": compute,
        "iteration time ratio": times,
        "test error, %": 100 * (1 - times / compute),
    }


def _table_claims(study: Study) -> Iterable[Claim]:
    ours = study.time_s(PCIE)
    yield judged("iteration time, P100, simulated", value(P100["iteration_s"], "0.85 s"), ours, "{:.3f} s")
    ours = study.time_s(TESLA_T4)
    yield "iteration time, T4, simulated", "0.90 s", f"{ours:.3f} s", FITTED, NOTES["nvidia"]
    for (what, ours), said in zip(_table_values().items(), ("0.85", "0.90", "1.15", "1.06", "7.9"), strict=True):
        # Our result must agree in all digits that the thesis prints.
        digits = len(said.partition(".")[2])
        width = 0.5 * 10**-digits
        wanted = Said(said, float(said) - width, float(said) + width)
        yield judged(what, wanted, ours, f"{{:.{digits + 2}f}}", NOTES["rounded"])


def _weight_claims(study: Study) -> Iterable[Claim]:
    thirds = _thirds(study.layers(PCIE))
    few, more, most = (float(np.mean([row.parameter_bytes for row in third])) for third in thirds)
    text = " / ".join(f"{size / 1e6:.2f} MB" for size in (few, more, most))
    yield "mean weight of the first 80, the next 70, the last 30", "more and more", text, few < more < most
    ratio = more / most
    yield judged("the next 70 against the last 30", value(0.2, "about one fifth"), ratio, "{:.2f}", NOTES["stage"])
    times = [float(np.mean(_forward_ms(third))) for third in thirds]
    text = " / ".join(f"{time:.2f} ms" for time in times)
    yield "mean forward time of the same", "decreases", text, times[0] > times[1] > times[2]


def _stage_claims(study: Study) -> Iterable[Claim]:
    layers = study.layers(PCIE_32)
    forward_s, backward_s = sum(_forward_ms(layers)) / 1e3, sum(_backward_ms(layers)) / 1e3
    for what, ours in (("forward", forward_s), ("backward", backward_s)):
        yield what, f"{STAGES[f'{what}_s']:.3f} s", f"{ours:.3f} s", FITTED, NOTES["stages"]
    ratio = backward_s / forward_s
    yield judged("backward against forward", value(2, "2"), ratio, "{:.2f}")


def _cpu_claims(study: Study) -> Iterable[Claim]:
    first, *_, last = _thirds(study.without_convolutions())
    times = [float(np.mean(_forward_ms(third))) for third in (first, last)]
    form = "{:.0f} ms to {:.0f} ms"
    yield changed(
        "mean forward time, the first 80 and the last 30", "decreases", (times[0], times[1]), form, grows=False
    )


def _cumulated_claims(study: Study) -> Iterable[Claim]:
    layers = study.without_convolutions()
    forward_ms, backward_ms = sum(_forward_ms(layers)), sum(_backward_ms(layers))
    yield judged("forward ends", value(900, "about 900 ms"), forward_ms, "{:.0f} ms", NOTES["cpu"])
    yield judged("forward to backward", value(2, "roughly 1:2"), backward_ms / forward_ms, "1:{:.2f}")


# -- tables and series ------------------------------------------------------------------------------------------------


def _value_table(study: Study) -> list[Drawn]:
    values = list(_table_values().values())
    rows = [
        ["iteration time, P100, s", f"{P100['iteration_s']:.2f}", f"{values[0]:.3f}", f"{study.time_s(PCIE):.3f}"],
        ["iteration time, T4, s", f"{T4['iteration_s']:.2f}", f"{values[1]:.3f}", f"{study.time_s(TESLA_T4):.3f}"],
        ["compute ratio P100 : T4", "1.15", f"{values[2]:.3f}", ""],
        ["iteration time ratio T4 : P100", "1.06", f"{values[3]:.3f}", ""],
        ["test error, %", "7.9", f"{values[4]:.1f}", ""],
    ]
    note = (
        "Equation 3.1 divides the mini-batch by images/s. The thesis's rounded entries, 0.90 / 0.85 and 1.15, give "
        "7.9 %; what it prints beside them gives the value here."
    )
    return [table("ResNet-50", ["quantity", "published", "by its equations", "simulated"], rows, note)]


_LAYER = "layer, input side first"


def _layer_series(study: Study) -> Iterable[Drawn]:
    layers = study.layers(PCIE)
    x = (_LAYER, range(len(layers)))
    yield chart("forward time, mini-batch of 128", x, "ms", [line("forward", _forward_ms(layers))])
    yield chart("weights", x, "MB", [line("parameters", [row.parameter_bytes / 1e6 for row in layers])])


def _stage_table(study: Study) -> list[Drawn]:
    layers = study.layers(PCIE_32)
    ours = {"forward": sum(_forward_ms(layers)) / 1e3, "backward": sum(_backward_ms(layers)) / 1e3}
    rows = [[name, f"{STAGES[f'{name}_s']:.3f}", f"{value:.3f}"] for name, value in ours.items()]
    note = "Seconds with a mini-batch of 32. Loading data and copying it to the GPU is not simulated."
    return [table("Stages", ["stage", "published", "ours"], rows, note)]


def _cpu_series(study: Study) -> list[Drawn]:
    layers = study.without_convolutions()
    lines = [line("forward", _forward_ms(layers)), line("backward", _backward_ms(layers))]
    return [chart("scaled to 3 s", (_LAYER, range(len(layers))), "ms", lines)]


def _cumulated_series(study: Study) -> list[Drawn]:
    layers = study.without_convolutions()
    forward = np.cumsum(_forward_ms(layers))
    backward = forward[-1] + np.cumsum(_backward_ms(layers)[::-1])[::-1]
    lines = [line("forward", map(float, forward)), line("backward", map(float, backward))]
    return [chart("since the start of the iteration", (_LAYER, range(len(layers))), "ms", lines)]


FIGURES: dict[str, Figure[Study, Case]] = {
    "Table 3.1": Figure([PCIE, TESLA_T4], _table_claims, tables=_value_table),
    "3.4": Figure([PCIE], _weight_claims, series=_layer_series),
    "3.5": Figure([PCIE_32], _stage_claims, tables=_stage_table),
    "3.6": Figure(claims=_cpu_claims, series=_cpu_series),
    "3.7": Figure(claims=_cumulated_claims, series=_cumulated_series),
}

STATEMENTS = Statements(paper=PAPER, figures=FIGURES, scenario=scenario, study=Study)
PART = STATEMENTS.part(seconds=1)
