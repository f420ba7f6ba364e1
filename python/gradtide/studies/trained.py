"""What a study is asked about: a scenario, or a model by itself on a cluster."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide import presets
from gradtide.architecture import FAMILY
from gradtide.errors import Fault, ScenarioError, TraceError, did_you_mean, hinted
from gradtide.recognise import expecting, other_format
from gradtide.scenario import Scenario
from gradtide.scenario.opdag import OpDag, op_dag
from gradtide.scenario.source import of_command_line, parse_json, parse_toml, read_text
from gradtide.scenario.tables import rank_count
from gradtide.studies.asked import as_scenario

DEFAULT_WORKERS = 8
"""Of a model whose cluster does not say how many hosts it has."""

Cluster = Scenario | str | Path | Mapping[str, Any] | None


def trained(
    scenario: Any, cluster: Cluster = None, workers: int | None = None, for_engine: str | None = None, **keys: Any
) -> Scenario:
    """Return the scenario that a study is asked about.

    Args:
        scenario: a `Scenario`, a file, the name of a preset, or a dict with the keys of a scenario file; or a model: a
            preset's name, a profile, a list of layers, an `OpDag` or what a file of one holds, a trace. An op graph
            has parameter servers, and is inference if it updates nothing.
        cluster: what the model is trained on: the name of a cluster, as in `ethernet-25g/16`, which has 16 hosts, of
            an op graph's a fifth servers; a file or dict with a cluster alone; or a scenario, in which the model takes
            the place of the job's. None for all defaults.
        workers: number of workers; None keeps the scenario's.
        for_engine: the engine that it will be given, since built-in clusters differ. Default: that of `keys`.
        keys: what a run is asked to change, by short name (`Scenario.replace`); None keeps the scenario's.

    Raises:
        ScenarioError: if there is no such scenario, model or cluster, or one of them is wrong.
    """
    model = _model(scenario)
    if cluster is None and model is None and not _is_model_file(scenario):
        _refuse_misspelt(scenario)
        base = as_scenario(scenario)
        is_own = workers is None or (bool(base.jobs) and workers == base.jobs[0].workers)
        changes = {} if is_own else {"workers": workers}
        return base.replace(**changes, **_given(keys))
    if model is None:
        is_text = isinstance(scenario, (str, Path))
        if is_text and Path(scenario).suffix != ".toml" and not str(scenario).startswith("paper/"):
            # So that the file of another folder may name it, too.
            model = str(Path(scenario).resolve()) if Path(scenario).suffix else str(scenario)
        else:
            own = as_scenario(scenario)
            model = own.to_dict()["job"][own.jobs[0].name]["model"]
    data, base_dir = _cluster_alone(cluster, for_engine or keys.get("engine"))
    if data is not None:
        layers = [{"name": "any", "forward": "1ms", "backward": "1ms", "parameters": "4B"}]
        hosts = _places(data.get("cluster", {}))
        job: dict[str, Any] = {"model": {"layers": layers}, "workers": hosts or DEFAULT_WORKERS}
        if isinstance(model, OpDag):
            data = {**data, "run": {"engine": "fluid", **data.get("run", {})}}
            job["collective"] = {"ps": {"pull": "start"}}
            if isinstance(hosts, int) and hosts > 1:
                # As many servers as TicTac has, among the hosts that there are.
                servers = max(1, hosts // 5)
                job |= {"workers": hosts - servers, "collective": {"ps": {"servers": servers, "pull": "start"}}}
            if not any(op.updates for op in model.ops):
                job["task"] = "inference"
        base = Scenario.from_dict({**data, "job": {"train": job}}, base_dir)
    else:
        assert cluster is not None
        base = as_scenario(dict(cluster) if isinstance(cluster, Mapping) else cluster)
    device = presets.cluster_device(cluster) if isinstance(cluster, str) else None
    if device is not None and model in (*presets.model_names(), *presets.language_names()):
        keys = {**keys, "device": keys.get("device") or device}
    # By a change of its own, so that an error names the option that asks for it.
    changes = {} if workers in (None, base.jobs[0].workers) else {"workers": workers}
    is_divided = keys.get("parallel") is not None and data is not None and hosts is None
    if is_divided or (workers is None and rank_count(model, Path()) is not None):
        # As many as the mesh or the recorded step has.
        changes = {"workers": None}
    return base.replace(model=model, **changes, **_given(keys))


def _places(cluster: Mapping[str, Any]) -> Any:
    """Return how many workers a cluster has places for: hosts, or GPUs of nodes; None for what a job needs."""
    topology, node = cluster.get("topology"), cluster.get("node")
    hosts = topology.get("hosts") if isinstance(topology, Mapping) else None
    if not isinstance(hosts, int) or not isinstance(node, Mapping) or not isinstance(node.get("gpus"), int):
        return hosts
    cards = node.get("nics", node["gpus"])
    return hosts * node["gpus"] // cards if isinstance(cards, int) and cards > 0 else hosts


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def _model(given: Any) -> Any:
    """Return the model that is given; None for a scenario, or for a file, which a cluster makes a model's."""
    if isinstance(given, Mapping) and "ops" in given:
        return op_dag(given)
    if hasattr(given, "to_dag"):
        try:
            return given.to_model()
        except TraceError:
            # Its steps send more than gradients, or nothing but parameters that are received, op by op.
            for other in (given.to_step, given.to_dag):
                try:
                    return other()
                except (TraceError, ScenarioError):
                    continue
            raise
    is_scenario = isinstance(given, (Scenario, Path, dict, str)) and given not in (
        *presets.model_names(),
        *presets.language_names(),
    )
    return None if is_scenario else given


def _is_model_file(given: Any) -> bool:
    """Whether it is a layer table or a Hugging Face configuration, which is a model and no scenario."""
    if not isinstance(given, (str, Path)) or not os.path.isfile(given):
        return False
    if Path(given).suffix != ".json":
        return Path(given).suffix == ".csv"
    data = parse_json(read_text(Path(given), str(given), of_command_line(str(given))), str(given))
    return isinstance(data, dict) and FAMILY in data


def _refuse_misspelt(given: Any) -> None:
    """Refuse a name that is no scenario and nearly a built-in model's."""
    if isinstance(given, str) and "/" not in given and not Path(given).suffix:
        hint = did_you_mean(given, [*presets.model_names(), *presets.language_names()], "", '"{}"', kind="model")
        if hint:
            raise ScenarioError(
                [Fault("GT006", "", f"there is no scenario {given}, and no model of that name", given, hint, given)]
            )


def _cluster_alone(cluster: Cluster, engine: str | None) -> tuple[dict[str, Any] | None, Path]:
    """Return what describes a cluster and no job, and where its paths start; `None` if there is a job, too."""
    base_dir, data = Path(), dict(cluster) if isinstance(cluster, Mapping) else {} if cluster is None else None
    named = presets.cluster(cluster, engine) if isinstance(cluster, str) else None
    if named is not None:
        return named, base_dir
    if isinstance(cluster, str) and not Path(cluster).suffix and not cluster.startswith("paper/"):
        known = presets.cluster_names()
        name = cluster.partition("/")[0]
        listed = f"write {known[0]}/N for N hosts; there are {', '.join(known)}, and files (.toml, .json)"
        hint = hinted(name, known, listed, "{}/N", kind="cluster")
        raise ScenarioError([Fault("GT006", "", f"there is no cluster {cluster[:200]}", cluster, hint, cluster[:200])])
    if isinstance(cluster, (str, Path)) and Path(cluster).suffix in (".toml", ".json") and os.path.isfile(cluster):
        text, base_dir = read_text(Path(cluster), str(cluster), of_command_line(str(cluster))), Path(cluster).parent
        parse = parse_json if Path(cluster).suffix == ".json" else parse_toml
        with expecting(text, str(cluster), "a cluster", "scenario"):
            data = parse(text, str(cluster))
        is_other = isinstance(data, dict) and data and not {"cluster", "job", "run", "traffic"} & data.keys()
        if is_other and (fault := other_format(text, str(cluster), "a cluster")):
            raise ScenarioError([fault])
    return (None if not isinstance(data, dict) or data.get("job") else data), base_dir
