"""`gradtide compare --parallel A --parallel B`: speed and memory of a language model on several meshes of ranks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.answer import Candidate
from gradtide.answer.build import build
from gradtide.answer.memory import feasibility
from gradtide.answer.uncertainty import Uncertainty, uncertainty_of
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, within_limits
from gradtide.scenario import Scenario
from gradtide.studies.arguments import with_lists
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.rows import StudyRows
from gradtide.studies.run import head, run_all, total_cost
from gradtide.studies.run_folder import run_name, write_study
from gradtide.studies.trained import Cluster, trained


class MeshesResult(StudyRows):
    """Runs of one model on several meshes.

    Attributes:
        rows: one dict per mesh, with the columns of `meshes.csv`.
        results: the runs, by the name of their run folder.
        uncertainty: for each mesh, the measured error of earlier predictions of the same kind.
    """

    def __init__(self, results: Mapping[str, RunResult]) -> None:
        self.results = {run_name([mesh]): result for mesh, result in results.items()}
        self.rows = [_row(mesh, result) for mesh, result in results.items()]
        self.uncertainty = {mesh: uncertainty_of(result.scenario, "compare") for mesh, result in results.items()}
        best = max(row["tokens_per_s_per_gpu"] for row in self.rows)
        for row in self.rows:
            row["behind_percent"] = 100 * (1 - row["tokens_per_s_per_gpu"] / best)
        first = next(iter(self.results.values())).summary
        self.summary: dict[str, Any] = {
            **head("meshes", first["engine"]),
            "seed": first["seed"],
            **build(
                "compare",
                self.headline,
                [one.scenario for one in results.values()],
                self._candidates(results),
                most=True,
            ).to_dict(),
            "rows": self.rows,
            "cost": total_cost(result.summary for result in self.results.values()),
        }

    def _candidates(self, results: Mapping[str, RunResult]) -> list[Candidate]:
        """Return one candidate per mesh, with its speed in tokens/s per GPU, and whether it fits in memory."""
        return [
            Candidate(row["mesh"], row["tokens_per_s_per_gpu"], feasibility(result.job))
            for row, result in zip(self.rows, results.values(), strict=True)
        ]

    def write(self, folder: Path) -> None:
        """Write the result into the existing `folder`."""
        write_study(self, folder, "meshes.csv", self.results)

    @property
    def headline(self) -> str:
        """A sentence that recommends the fastest mesh that fits in memory, and names a faster one that does not fit."""
        ranked = sorted(self.rows, key=lambda row: -row["tokens_per_s_per_gpu"])
        fitting = [row for row in ranked if row["fits"] is not False]
        who = f"{ranked[0]['model']} on {words.ranks(ranked[0]['ranks'])}"
        if not fitting:
            least = min(self.rows, key=lambda row: row["memory_bytes"])
            return (
                f"{who}: no mesh fits in memory; {least['mesh']} needs least, {words.size(least['memory_bytes'], 3)}."
            )
        best, *others = fitting
        sentence = (
            f"{who}: use {best['mesh']}, the fastest, {words.number(best['tokens_per_s_per_gpu'])} tokens/s per GPU"
        )
        if others:
            ahead = best["tokens_per_s_per_gpu"] / others[0]["tokens_per_s_per_gpu"] - 1
            sentence += f", {words.percent(ahead)} ahead of {others[0]['mesh']}"
            sentence += self._doubt(ahead, [self.uncertainty[row["mesh"]] for row in (best, others[0])])
        if best is not ranked[0]:
            sentence += f"; {ranked[0]['mesh']} would be faster and does not fit in memory"
        return f"{sentence}.{self._unequal_batches()}"

    def _unequal_batches(self) -> str:
        """Return a caveat if the meshes train different global batches, which changes how well they use the devices."""
        batches = sorted({row["global_batch"] for row in self.rows})
        if len(batches) == 1:
            return ""
        return (
            f" The meshes train different global batches, of {batches[0]:,} to {batches[-1]:,} sequences a step: "
            "compare them at the same batch, --global-batch N."
        )

    @staticmethod
    def _doubt(ahead: float, kinds: Sequence[Uncertainty]) -> str:
        """Return a caveat if the fastest mesh's lead `ahead`, as a share, is below the mean error of such predictions.

        Prediction errors for two meshes of one model partly cancel, because they have common causes. How much of them
        cancels was not measured. Hence a larger lead gets no caveat, but is not called certain either.
        """
        if not all(one.is_compared for one in kinds):
            return ", but no prediction of this kind has been compared with a measurement"
        off = max(one.mean_error or 0.0 for one in kinds)
        return "" if ahead >= off else ", a difference below the mean error of such predictions"


@with_lists
@within_limits
def meshes(
    scenario: Any,
    parallel: Sequence[Mapping[str, Any]],
    *,
    cluster: Cluster = None,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
    **keys: Any,
) -> MeshesResult:
    """Simulate the training of a language model on several meshes.

    Args:
        scenario: a model, or a scenario that trains a model, as in `run`.
        parallel: one table `parallel` of a scenario per mesh, as in `{"fsdp": 16, "tp": 8}`. The tables may also differ
            in sharding, prefetch or pipeline schedule.
        cluster: cluster for the model, as in `run`.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction.
        keep: where finished runs are stored until the study is complete.
        limits: memory and time limits.
        keys: replacements of the scenario's keys, by short name, as in `seq=8192`.

    Raises:
        Interrupted: on Ctrl-C, with the finished meshes.
        ScenarioError: before any run, if a mesh is invalid, or the limits would be exceeded.
        ValueError: if there is no mesh, or a mesh is given twice.
    """
    scenarios = variants(lambda table: trained(scenario, cluster, parallel=table, **keys), parallel)
    return run_meshes(scenarios, jobs=jobs, progress=progress, keep=keep, limits=limits)


def variants(make: Callable[[dict[str, Any]], Scenario], parallel: Sequence[Mapping[str, Any]]) -> dict[str, Scenario]:
    """Return {name of a mesh: its scenario}, where `make` returns the scenario of a table `parallel`.

    Raises:
        ValueError: if there is no mesh, a mesh is given twice, or measured times of a rank do not apply to all meshes.
    """
    if not parallel:
        raise ValueError("parallel is empty; name at least one mesh")
    found: dict[str, Scenario] = {}
    for table in parallel:
        name = shown(table)
        if name in found:
            raise ValueError(f"parallel: {name} is given twice; delete one of them")
        found[name] = make(dict(table))
    parallel_models = [
        job.parallel_model for one in found.values() for job in one.jobs if job.parallel_model is not None
    ]
    own = next((one.own for one in parallel_models if one.own is not None), None)
    if own is not None and len({_parts(one.costs.mesh.sizes) for one in parallel_models}) > 1:
        raise ValueError(
            f"times: {own.source} has the times of one rank, and with another tp, cp or ep a rank computes other "
            "parts; compare meshes that differ in fsdp, dp and pp, or leave `times` out"
        )
    return found


def _parts(mesh: Mapping[str, int]) -> tuple[int, ...]:
    """Return the sizes of tp, cp and ep: the mesh axes that determine a rank's share of an op."""
    return tuple(mesh[axis] for axis in ("tp", "cp", "ep"))


def run_meshes(
    scenarios: Mapping[str, Scenario],
    *,
    jobs: int = 1,
    progress: Callable[[float], object] | None = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> MeshesResult:
    """Run the scenarios of `variants`; the arguments are those of `meshes`."""
    try:
        results = run_all(list(scenarios.values()), jobs, progress, keep, limits)
    except Unfinished as stop:
        known = {mesh: one for mesh, one in zip(scenarios, stop.results, strict=True) if one is not None}
        if known:
            stop.attach(MeshesResult(known))
        raise
    return MeshesResult(dict(zip(scenarios, results, strict=True)))


def shown(table: Mapping[str, Any]) -> str:
    """Return a table `parallel` in the syntax of `--parallel`, as in `fsdp=16,tp=8`."""

    def text(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")

    return ",".join(f"{key}={text(value)}" for key, value in table.items())


def _row(mesh: str, result: RunResult) -> dict[str, Any]:
    job, facts = result.job, result.job["parallel"]
    waits = {name: group["exposed_ms"] for name, group in facts["groups"].items()}
    waits[words.others(facts["mesh"])] = facts["waits_for_stages_ms"]
    most = max(waits, key=lambda name: waits[name], default="")
    memory = facts["memory"]
    return {
        "run": run_name([mesh]),
        "model": job["model"],
        "mesh": mesh,
        "ranks": facts["ranks"],
        "global_batch": facts["global_batch"],
        "iteration_time_us": 1e3 * job["iteration_time_ms"]["mean"],
        "compute_us": 1e3 * job["compute_ms"],
        "exposed_us": 1e3 * sum(waits.values()),
        "waits_most_for": most if waits[most] else "",
        "tokens_per_s_per_gpu": facts["tokens_per_s_per_gpu"],
        "mfu": facts["mfu"],
        "memory_bytes": memory["total"],
        "device_bytes": memory["device"],
        "fits": memory["feasibility"] != "does not fit",
        "feasibility": memory["feasibility"],
    }
