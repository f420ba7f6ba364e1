"""`gradtide demo`: savings of schedules on two well-known models, from slow to fast links."""

from gradtide.scenario import Scenario
from gradtide.studies.compare import Axes, CompareResult, Variant, grid, run_variants

QUESTION = "What do priority and no barrier save, on V100s (32 images each), from 1 to 25 Gbit/s?"

MODELS = ("resnet50", "vgg16")
WORKERS = (2, 8)
RATES = ("1Gbps", "2Gbps", "5Gbps", "10Gbps", "25Gbps")
SCHEDULES = ("fifo+barrier", "priority+barrier", "priority")


def variants() -> list[Variant]:
    """Return the demo's grid of runs: every schedule for every model, number of workers and link rate."""
    base = Scenario.from_dict(
        {
            "job": {
                "train": {
                    "model": MODELS[0],
                    "workers": WORKERS[0],
                    "compute": {"device": "V100", "batch": 32},
                    "iterations": 3,
                }
            },
            "cluster": {"link": {"rate": "10Gbps", "delay": "10us"}},
        }
    )
    return grid(base, SCHEDULES, Axes(models=MODELS, workers=WORKERS, rates=RATES))


def demo(*, jobs: int = 1) -> CompareResult:
    """Run the demo.

    Args:
        jobs: number of concurrent runs; the result does not depend on it.
    """
    return run_variants(variants(), jobs=jobs)
