"""Makes the scenario of a study from the user's arguments: a scenario, or a model and a cluster."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide import presets
from gradtide.architecture import FAMILY
from gradtide.errors import Fault, ScenarioError, TraceError, did_you_mean
from gradtide.recognise import expecting, other_format
from gradtide.scenario import Scenario, clusters
from gradtide.scenario.opdag import OpDag, op_dag
from gradtide.scenario.source import of_command_line, parse_json, parse_toml, read_text
from gradtide.scenario.tables import rank_count
from gradtide.studies.arguments import as_scenario

DEFAULT_WORKERS = 8
"""Number of workers if the cluster does not fix a number of hosts."""

Cluster = Scenario | str | Path | Mapping[str, Any] | None


def trained(scenario: Any, cluster: Cluster = None, workers: int | None = None, **keys: Any) -> Scenario:
    """Return the scenario of a study.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model: a
            preset's name, a profile, a list of layers, an `OpDag` or the content of its file, a trace. An op graph is
            trained with parameter servers, unless the cluster is a scenario. If no op updates parameters, the task is
            inference.
        cluster: for a scenario, replacement of its `[cluster]` (`Scenario.on_cluster`). For a model, where it is
            trained: the name of a cluster, as in `ethernet-25g/16` for 16 hosts, of which a fifth are servers if the
                model is an op graph; a file or dict with a cluster only; or a scenario with one job, whose model is
                replaced. Default: the default cluster.
        workers: number of workers. Default: the scenario's.
        keys: changes by short name (`Scenario.replace`); `None` keeps the scenario's value.

    Raises:
        ScenarioError: if the scenario, model or cluster does not exist or is invalid.
    """
    if scenario == "":
        raise ScenarioError(
            [Fault("GT002", "", "the name of the scenario is empty", "", 'write a name, as in "resnet50"')]
        )
    model = _model(scenario, is_on_cluster=cluster is not None)
    if model is None:
        _refuse_misspelt(scenario)
        base = as_scenario(scenario)
        if cluster is not None:
            base = _moved(base, cluster)
        is_own = workers is None or (bool(base.jobs) and workers == base.jobs[0].workers)
        changes = {} if is_own else {"workers": workers}
        return base.replace(**changes, **_given(keys))
    data, base_dir, _ = _described(cluster)
    is_cluster_alone = not data.get("job")
    if is_cluster_alone:
        layers = [{"name": "any", "forward": "1ms", "backward": "1ms", "parameters": "4B"}]
        hosts = _places(data)
        job: dict[str, Any] = {"model": {"layers": layers}, "workers": hosts or DEFAULT_WORKERS}
        if isinstance(model, OpDag):
            data = {**data, "run": {"engine": "fluid", **data.get("run", {})}}
            job["collective"] = {"ps": {"pull": "start"}}
            if isinstance(hosts, int) and hosts > 1:
                # One server per four workers, as in TicTac (2019), section 6.1.
                servers = max(1, hosts // 5)
                job |= {"workers": hosts - servers, "collective": {"ps": {"servers": servers, "pull": "start"}}}
            if not any(op.updates for op in model.ops):
                job["task"] = "inference"
        base = Scenario.from_dict({**data, "job": {"train": job}}, base_dir)
    else:
        assert cluster is not None
        base = _without_model(as_scenario(dict(cluster) if isinstance(cluster, Mapping) else cluster))
    # The number of workers is a separate change, so that an error about it names the option.
    changes = {} if workers in (None, base.jobs[0].workers) else {"workers": workers}
    is_parallel = keys.get("parallel") is not None and is_cluster_alone and hosts is None
    if is_parallel or (workers is None and rank_count(model, Path()) is not None):
        # The mesh or the recorded step determines the number of workers.
        changes = {"workers": None}
    return base.replace(model=model, **changes, **_given(keys))


def _moved(base: Scenario, cluster: Cluster) -> Scenario:
    if isinstance(cluster, Scenario):
        return base.on_cluster(cluster)
    data, base_dir, name = _described(cluster)
    if data == {"cluster": cluster}:
        return base.on_cluster(str(cluster))
    return base.on_cluster(data, base_dir=base_dir, name=name)


def _without_model(base: Scenario) -> Scenario:
    """Return the scenario without keys that apply only to its present model; raise if it has several jobs."""
    if len(base.jobs) > 1:
        names = [job.name for job in base.jobs]
        hint = f"name the job that gets the model: --set job.{names[0]}.model=MODEL, without --cluster"
        msg = f"{base.name} has {len(names)} jobs ({', '.join(names)}), and a model can take the place of one only"
        raise ScenarioError([Fault("GT016", "job", msg, None, hint, base.name)])
    return without_scale(base)


def without_scale(base: Scenario) -> Scenario:
    """Return the scenario without `compute.scale_to`, the compute time to which the replaced model is scaled."""
    scaled = [job.name for job in base.jobs if job.compute.scale_to_ps is not None]
    if not scaled:
        return base
    keys = ", ".join(f"job.{name}.compute.scale_to" for name in scaled)
    return base.replace(scale_to=None).with_warning(f"{keys} belongs to the replaced model and is ignored")


def _places(data: Mapping[str, Any]) -> Any:
    """Return the number of hosts, or of GPUs for a cluster of nodes; `None` if the cluster adapts to the job."""
    cluster = clusters.whole(data).get("cluster", {})
    topology, node = (cluster.get(key) if isinstance(cluster, Mapping) else None for key in ("topology", "node"))
    hosts = topology.get("hosts") if isinstance(topology, Mapping) else None
    if not isinstance(hosts, int) or not isinstance(node, Mapping) or not isinstance(node.get("gpus"), int):
        return hosts
    cards = node.get("nics", node["gpus"])
    return hosts * node["gpus"] // cards if isinstance(cards, int) and cards > 0 else hosts


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def _model(given: Any, *, is_on_cluster: bool) -> Any:
    """Return `given` if it is a model, `None` if it is a scenario. On a cluster, unknown names count as models."""
    if isinstance(given, Mapping) and "ops" in given:
        return op_dag(given)
    if hasattr(given, "to_dag"):
        try:
            return given.to_model()
        except TraceError:
            # The trace is not a list of layers: its steps send more than gradients, or receive parameters op by op.
            for other in (given.to_step, given.to_dag):
                try:
                    return other()
                except (TraceError, ScenarioError):
                    continue
            raise
    if isinstance(given, (Scenario, dict)):
        return None
    if not isinstance(given, (str, Path)) or given in (*presets.model_names(), *presets.language_names()):
        return given
    is_model = _is_model_file(given)
    if is_model is None:
        is_model = is_on_cluster and Path(given).suffix != ".toml" and not str(given).startswith("paper/")
    if not is_model:
        return None
    # The path is absolute, because the scenario may be in another folder.
    return str(Path(given).resolve()) if Path(given).suffix else str(given)


def _is_model_file(given: str | Path) -> bool | None:
    """Return whether a file is a model, such as a layer table or a Hugging Face configuration; `None` if undecided."""
    if not os.path.isfile(given) or Path(given).suffix not in (".csv", ".json"):
        return None
    if Path(given).suffix == ".csv":
        return True
    try:
        data = parse_json(read_text(Path(given), str(given), of_command_line(str(given))), str(given))
    except ScenarioError:
        return None  # the reader of the file reports the fault
    if isinstance(data, dict) and data.keys() & {"job", "traffic", "cluster", "run"}:
        return False
    is_model = isinstance(data, dict) and (FAMILY in data or str(data.get("schema")).startswith("gradtide.model/"))
    return True if is_model else None


def _refuse_misspelt(given: Any) -> None:
    """Raise if a name without slash and suffix resembles the name of a built-in model."""
    if isinstance(given, str) and "/" not in given and not Path(given).suffix:
        hint = did_you_mean(given, [*presets.model_names(), *presets.language_names()], "", '"{}"', kind="model")
        if hint:
            raise ScenarioError(
                [Fault("GT006", "", f"there is no scenario {given}, and no model of that name", given, hint, given)]
            )


def _described(cluster: Cluster) -> tuple[dict[str, Any], Path, str | None]:
    """Return the keys of a cluster, the folder to which their paths are relative, and the cluster's name in errors."""
    if cluster is None:
        return {}, Path(), None
    if isinstance(cluster, Scenario):
        return cluster.to_dict(), Path(), cluster.name
    if isinstance(cluster, Mapping):
        return dict(cluster), Path(), None
    text, suffix = str(cluster), Path(cluster).suffix
    if suffix in (".toml", ".json") and os.path.isfile(cluster):
        parse = parse_json if suffix == ".json" else parse_toml
        content = read_text(Path(cluster), text, of_command_line(text))
        with expecting(content, text, "a cluster", "scenario"):
            data = parse(content, text)
        is_other = isinstance(data, dict) and data and not {"cluster", "job", "run", "traffic"} & data.keys()
        if is_other and (fault := other_format(content, text, "a cluster")):
            raise ScenarioError([fault])
        if isinstance(data, dict):
            return data, Path(cluster).parent, text
    if suffix or text.startswith("paper/"):
        return as_scenario(cluster).to_dict(), Path(), text
    if presets.cluster(text) is None:
        raise ScenarioError(
            [Fault("GT006", "", f"there is no cluster {text[:200]}", text, clusters.hint_of(text), text[:200])]
        )
    return {"cluster": text}, Path(), text
