"""`gradtide convert`: reads a file of another tool, and writes its content in another format."""

from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.errors import TraceError
from gradtide.scenario import Scenario
from gradtide.scenario.core.queries import step_graph
from gradtide.studies.arguments import refuse

VERSION = "0.0.4"
"""Default Chakra schema version of written traces."""


def convert(  # noqa: PLR0913 - one argument per option of the command
    source: str | Path,
    target: str | Path | None = None,
    *,
    from_format: str | None = None,
    to_format: str | None = None,
    packet: str | None = None,
    topology: str | Path | None = None,
    start_unit: str | None = None,
    rank: int | None = None,
    cut: bool = False,
    version: str | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Read a file of another tool, and write its content in another format.

    Args:
        source: file in a format that `gradtide convert --formats` lists; for traces also a folder or a glob pattern.
            Also a scenario with a parallel job, or the run folder of such a scenario.
        target: file to write. Default: write nothing. For a scenario, `NAME.et`: the Chakra traces of all ranks are
            written to `NAME.0.et` and so on, and their process groups to `NAME.groups.json`, as ASTRA-sim reads them.
        from_format: format of `source`. Default: detected from its content.
        to_format: format of `target`. Default: by its suffix.
        packet: size of a packet, in which a cdf-ns2 file counts, as in `1460B`.
        topology: HPCC topology file, which determines the hosts among the nodes of an hpcc-flow file.
        start_unit: unit of the start times in an htsim-cm file, ps or us. Default: detected if the file is `source`, ps
            if it is `target`.
        rank: for a trace, convert only this rank.
        cut: when a trace is converted to an op DAG, remove the dependencies of received transfers.
        version: schema version of written Chakra traces, 0.0.4 or 1.0.0. Default: 0.0.4.
        step: when a trace is converted to Chakra, convert only this step, for all ranks and with dependencies on
            transfers. Files are named as for a scenario.

    Returns:
        The document of `gradtide convert --json`.

    Raises:
        ScenarioError: with all faults of the file, each with its line and field.
        TraceError: if a trace is invalid, or `target` cannot be written.
        ValueError: if the conversion is not supported, or an argument is missing or has no effect.
    """
    from gradtide import formats, traces
    from gradtide.traces import astra

    target = None if target is None else Path(target)
    of_files: dict[str, Any] = {"--from": from_format, "--to": to_format}
    of_files |= {"--packet": packet, "--topology": topology, "--start-unit": start_unit}
    of_trace = {"--rank": rank, "--cut": cut or None, "--version": version, "--step": step}
    if version is not None and version not in traces.CHAKRA_VERSIONS:
        raise ValueError(f"no version {version!r} is written; there are {', '.join(traces.CHAKRA_VERSIONS)}")
    scenario = _scenario_of(source)
    if scenario is not None:
        refuse("a scenario is written as Chakra", {**of_files, "--cut": cut or None, "--step": step})
        if target is None or target.suffix != ".et":
            raise ValueError(f"{source} is a scenario: name OUT as in step.et, for the Chakra traces of its ranks")
        graph = step_graph(Scenario.load(scenario))
        if graph is None:
            raise TraceError("no job divides a model over ranks, so there is no step to write; give it `parallel`")
        saved = astra.StepFiles(graph).save(target, rank, version or VERSION)
        return {
            "schema": "gradtide.convert/1",
            "format": "scenario",
            "holds": "step",
            "written": [str(file) for file in saved],
            "notes": [],
        }
    form = formats.recognised(Path(source)) if from_format is None else formats.known(from_format)
    if form is None or form.kind == "trace":
        refuse("the suffix of OUT determines the format of a trace", {**of_files, "--from": None})
        if target is None:
            refuse("nothing is written without OUT", of_trace)
        elif target.suffix == ".et":
            refuse("a Chakra trace is written without changes", {"--cut": cut or None})
        elif target.suffix == ".json":
            refuse("an op DAG has no version and covers the whole trace", {"--version": version, "--step": step})
        trace = traces.read(source)
        if target is None:
            saved = []
        elif step is not None:
            saved = astra.StepFiles(trace.graph(step)).save(target, rank, version or VERSION)
        else:
            saved = trace.save(target, rank=rank, cut=cut, version=version or VERSION)
        return {**trace.summary(), "written": [str(file) for file in saved]}
    refuse(f"{form.name} is not a trace", of_trace)
    if target is None:
        refuse("nothing is written without OUT", {"--to": to_format})
    packet_bytes = None if packet is None else units.parse_bytes(packet)
    if packet_bytes == 0:
        raise ValueError("--packet: 0 bytes is not a size; write 1460B or 1B")
    hosts = None if topology is None else Path(topology)
    options: dict[str, Any] = {"packet_bytes": packet_bytes, "topology": hosts, "start_unit": start_unit}
    done = formats.convert(Path(source), target, form=form, into=to_format, **options)
    written = None if done.target is None else {"file": str(target), "format": done.target.name}
    summary = {"schema": "gradtide.convert/1", "format": form.name, "holds": form.kind, **done.figures}
    return {**summary, "written": written, "notes": list(done.notes)}


def _scenario_of(source: Any) -> Path | None:
    """Return the path of the scenario that `source` is, or that its run folder contains; `None` if it is neither."""
    if not isinstance(source, (str, Path)):
        return None
    resolved = Path(source) / "scenario.resolved.toml"
    return resolved if resolved.is_file() else Path(source) if Path(source).suffix == ".toml" else None
