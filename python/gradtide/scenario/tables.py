"""Reads the `model` of a job into a `LayerTable`: a preset, CSV or JSON file, trace, inline or synthetic table.

Of the cluster, only `cluster.device` affects the result. The module is longer than 600 lines because each form of a
model has its own faults with line and field.
"""

import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gradtide import inputs, units
from gradtide.architecture import FAMILY, Architecture, FieldError
from gradtide.errors import Fault, ScenarioError, TraceError, did_you_mean
from gradtide.layers import Layer
from gradtide.recognise import HEAD_BYTES, expecting, seen
from gradtide.scenario.csvfile import MAX_FAULTS_OF_A_FILE, CsvFile
from gradtide.scenario.device import ASSUMED_DEVICE, HINT, MEASURED, JobDevice, device_of, unknown_device
from gradtide.scenario.keys.job import Compute, GraphModel, InlineModel, StepModel, ThesisModel
from gradtide.scenario.keys.types import parse_name
from gradtide.scenario.opdag import Op, OpDag, op_dag
from gradtide.scenario.source import (
    COPY_IT,
    NOT_SHOWN,
    Fail,
    Failure,
    Faults,
    Loc,
    Source,
    Under,
    may_quote,
    parse_json,
    pointed,
    read_text,
)
from gradtide.schemas import newer_version
from gradtide.units import PPM

if TYPE_CHECKING:
    from gradtide.presets import Device

MAX_LAYERS = 100_000
_COLUMNS = ("layer", "forward_us", "backward_us", "parameter_bytes", "update_us")
_HEADER = "layer,forward_us,backward_us,parameter_bytes[,update_us]"
MODEL_SCHEMA = "gradtide.model/1"
_MODEL_KEYS = ("schema", "name", "title", "source", "sample", "tensors", "profile", "layers")
_LAYER_KEYS = (
    "name",
    "parameter_bytes",
    "forward_us",
    "backward_us",
    "update_us",
    "forward_flops",
    "activation_bytes",
    "winograd",
)
_TICKS_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_TRACE_SUFFIXES = (".json.gz", ".et", ".tar", ".tar.gz", ".tgz", ".zip", ".sqlite")
_KINETO = re.compile(rb'"(schemaVersion|traceEvents|distributedInfo|deviceProperties)"\s*:|"gradtide\.trace/1"')
"""Matches keys that occur at the beginning of JSON traces, but not in model files."""

At = Callable[[int, str, str, str, str, Any], Fault]
"""Function of layer index, field, code, message, hint and value that returns a fault at a field of a layer."""


@dataclass(frozen=True)
class LayerTable:
    """A model as layers with times and sizes, before `compute.scale_to` is applied.

    Attributes:
        label: name of the model in results.
        layers: layers, input side first; for a graph of ops its recvs, and empty for a recorded step.
        written: value of `model` in the resolved scenario: a preset's name, or a table that needs no other file.
        is_timed: whether the model came with times; otherwise times are estimated from counts, device and batch.
        device: the device, and where it is named.
        graph: ops with times in picoseconds, for a model that is a graph of ops.
        place: location of the graph, for faults.
        batch: mini-batch of a worker if times are estimated: the job's, or the default for the model.
        seq: number of tokens per sample, for a Hugging Face configuration.
        architecture: architecture of a Hugging Face configuration.
        bucketed: whether each layer is already a bucket of gradients.
        left_out: a warning for each part of the model's file that has no effect.
        step: ops and transfers of all ranks, for a recorded step.
        is_language: whether a sample is a sequence of tokens. A language model has no default device.
    """

    label: str
    layers: tuple[Layer, ...]
    written: Any
    is_timed: bool
    device: JobDevice
    graph: OpDag | None = None
    place: Source | Under | None = None
    batch: int | None = None
    seq: int | None = None
    architecture: Architecture | None = None
    bucketed: bool = False
    left_out: tuple[str, ...] = ()
    step: dict[str, Any] | None = None
    is_language: bool = False


@dataclass(frozen=True)
class ComputeRequest:
    """The keys on which the estimated times of a model depend: the job's table `compute`, and `cluster.device`."""

    compute: Compute
    cluster_device: str | None = None

    def device(self, own: str | None = None, assumed: str | None = None) -> JobDevice:
        """Return the device of the job; `own` is the device of the model's file, and `assumed` the default."""
        return device_of(self.compute, self.cluster_device, own=own, assumed=assumed)

    def batch(self, default: int) -> int:
        """Return the mini-batch of a worker in samples: `compute.batch` if given, otherwise `default`."""
        return self.compute.batch if self.compute.is_given("batch") else default


def read_model(
    value: str | InlineModel | ThesisModel | GraphModel | StepModel | dict[str, Any],
    source: Source,
    loc: Loc,
    base_dir: Path,
    request: ComputeRequest,
    *,
    by_op: bool = False,
) -> LayerTable:
    """Read the model that `value`, the key at `loc`, contains or names. Missing times are estimated by the roofline.

    A Hugging Face configuration gets no times here, because it may be divided over ranks. With `by_op`, workers compute
    op by op: if `value` is the name of a built-in op graph, the graph is read instead of a preset of layers.
    """
    fail = Failure(source, loc, value if isinstance(value, str) else None)
    if isinstance(value, dict):
        return _configuration(value, "config", Under(source, loc), source, loc, request)
    if isinstance(value, ThesisModel):
        layers = thesis_layers(value.layers, value.size_bytes, value.time_ps, value.precision, fail)
        return LayerTable("thesis", layers, value.plain(), True, request.device())
    if isinstance(value, InlineModel):
        return _inline(value, source, loc, request)
    if isinstance(value, StepModel):
        written = value.plain()
        return LayerTable(value.name, (), written, True, request.device(), step=value.document)
    if isinstance(value, GraphModel):
        data = {"ops": value.ops, "target": value.target, "inference_target": value.inference_target}
        return _graph(data, value.name, value.time_unit, Under(source, loc), request, value.device)
    suffix = Path(value).suffix.lower()
    path = base_dir / value
    if _is_trace(value, path):
        return _trace(value, base_dir, fail, request)
    if suffix == ".pftrace":
        hint = "available: traces of Kineto (.json, .json.gz), Chakra (.et) and Nsight Systems (.sqlite), archives "
        hint += "of them (.tar, .tar.gz, .tgz, .zip), and every other kind of model"
        raise ScenarioError([fail("GT090", "reading traces of Perfetto is not built yet", hint)])
    if suffix in (".csv", ".json"):
        text = read_text(path, value, fail)
        with expecting(text, value, "a model", "layers", "model", "config", "dag"):
            if suffix == ".csv":
                layers = read_layers_csv(text, value)
                return LayerTable(path.stem, layers, layers_table(path.stem, layers), True, request.device())
            return read_model_file(text, value, source, loc, request)
    if by_op:
        from gradtide.presets import graphs

        if value in graphs.graph_names():
            return _preset_graph(value, source, loc, request)
    return _preset(value, source, loc, request)


def _is_trace(value: str, path: Path) -> bool:
    """Return whether `model` names traces, judging by its suffix or the beginning of the file."""
    if value.lower().endswith(_TRACE_SUFFIXES):
        return True
    if not value.lower().endswith(".json"):
        return ("/" in value or value.startswith(".")) and os.path.isdir(path)
    if any(mark in value for mark in "*?["):
        return not os.path.isfile(path)
    try:
        head = inputs.start(path, HEAD_BYTES)
    except (OSError, ValueError, inputs.InputError):
        return False
    found = seen(head)
    return _KINETO.search(head) is not None or (found is not None and found.name in ("kineto", "chrome-trace"))


def _trace(value: str, base_dir: Path, fail: Failure, request: ComputeRequest) -> LayerTable:
    from gradtide.traces.model import TraceStep
    from gradtide.traces.reading import read_model as read_trace

    try:
        model = read_trace(base_dir / value)
    except TraceError as error:
        if not may_quote(value, fail.source, base_dir):
            raise ScenarioError([fail("GT038", NOT_SHOWN, COPY_IT)]) from None
        hint = "name a trace of a training step; `gradtide convert FILE` describes its content"
        raise ScenarioError([fail("GT038", str(error), hint)]) from None
    source = f"{value}: {model.source}"
    if isinstance(model, TraceStep):
        written = replace(model, source=source).table
        return LayerTable(model.name, (), written, True, request.device(), step=model.document)
    rows = layers_table(model.name, model.layers, bucketed=True, source=source, left_out=model.left_out)
    return LayerTable(model.name, model.layers, rows, True, request.device(), bucketed=True, left_out=model.left_out)


def rank_count(model: Any, base_dir: Path) -> int | None:
    """Return the number of ranks if `model` is a recorded step; None for other models and unreadable files."""
    from gradtide.traces.model import TraceStep
    from gradtide.traces.reading import read_model as read_trace

    if isinstance(model, str):
        try:
            model = read_trace(base_dir / model) if _is_trace(model, base_dir / model) else None
        except TraceError:
            return None
    if isinstance(model, (StepModel, TraceStep)):
        model = model.document
    classes = model.get("classes") if isinstance(model, Mapping) else None
    if classes is None:
        return None
    try:
        return max(1, sum(int(one["ranks"]) for one in classes))
    except (TypeError, KeyError, ValueError):
        return 1  # the core reports the invalid step later


def thesis_layers(count: int, size_bytes: int, time_ps: int, precision: str, fail: Fail) -> tuple[Layer, ...]:
    """Return the synthetic layers of Gao (2020), section 4.2: L = `count`, nominal size M and compute time T.

    With d = 2T / (3 L (L - 1)) and e = 2d, forward times decrease by d from layer to layer, and backward times increase
    by e. A time that would be 0 is d or e instead, so the sums of forward and backward times exceed T/3 and 2T/3 by d
    and e. `ThesisModel` describes `precision`.
    """
    if count > MAX_LAYERS:
        raise ScenarioError([_too_many(fail, count)])
    unit = 2 * size_bytes // (9 * count)
    if unit == 0 and size_bytes > 0:
        hint = f'write a size of at least "{-(-9 * count // 2)}B"'
        raise ScenarioError([fail("GT014", f"the size is too small for {count} layers", hint)])
    # The true d and e are these numerators divided by `parts`; every time is a multiple of d or e.
    d, e, parts = 2 * time_ps, 4 * time_ps, 3 * count * (count - 1)
    rounded = units.divided if precision == "exact" else _float32_ms
    layers = []
    for i in range(count):
        share = 1 if 2 * i < count else 4 if 4 * i <= 3 * count else 12
        forward_ps = rounded(d * max(count - 1 - i, 1), parts)
        layers.append(Layer(f"layer{i}", forward_ps, rounded(e * max(i, 1), parts), share * unit))
    return tuple(layers)


def _float32_ms(ps: int, parts: int) -> int:
    """Return ps / parts in picoseconds, computed in single-precision milliseconds and truncated to nanoseconds."""
    (single_ms,) = struct.unpack("f", struct.pack("f", ps / (10**9 * parts)))
    return int(single_ms * 1e6) * 1000


def scaled(layers: Sequence[Layer], total_ps: int) -> tuple[Layer, ...]:
    """Return the layers with times rescaled to sum to exactly `total_ps`, rounded by the largest-remainder method.

    Times of the host (`Layer.is_host`) are neither rescaled nor counted, because they do not depend on the device.
    """
    own = [layer for layer in layers if not layer.is_host]
    times = [time for layer in own for time in (layer.forward_ps, layer.backward_ps, layer.update_ps)]
    parts = iter(units.rescaled(times, total_ps))
    return tuple(
        layer
        if layer.is_host
        else layer._replace(forward_ps=next(parts), backward_ps=next(parts), update_ps=next(parts))
        for layer in layers
    )


def layers_table(
    label: str,
    layers: Sequence[Layer],
    *,
    bucketed: bool = False,
    source: str | None = None,
    device: str | None = None,
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `layers` as an inline table `model` of a scenario; `InlineModel` describes the keyword arguments."""
    rows = []
    for layer in layers:
        row: dict[str, Any] = {
            "name": layer.name,
            "forward": units.format_time(layer.forward_ps),
            "backward": units.format_time(layer.backward_ps),
            "parameters": units.format_bytes(layer.parameter_bytes),
        }
        if layer.update_ps:
            row["update"] = units.format_time(layer.update_ps)
        if layer.is_host:
            row["host"] = True
        rows.append(row)
    table: dict[str, Any] = {"name": label, "layers": rows}
    given = {"bucketed": bucketed, "source": source, "device": device, "left_out": list(left_out)}
    return table | {name: value for name, value in given.items() if value}


def read_layers_csv(text: str, name: str) -> tuple[Layer, ...]:
    """Return the layers of a CSV text with the header layer,forward_us,backward_us,parameter_bytes[,update_us].

    Raises:
        ScenarioError: with every fault, each at its line and field.
    """
    return _LayersFile(text, name).layers()


class _LayersFile(CsvFile):
    header, known, needed, most, unit = _HEADER, _COLUMNS, 4, MAX_LAYERS, "layers"

    def layers(self) -> tuple[Layer, ...]:
        rows = self.rows()
        layers: list[Layer] = []
        places: list[int] = []
        faults: list[Fault] = []

        def at(index: int, field: str, code: str, msg: str, hint: str, value: Any) -> Fault:
            field = {"name": "layer", "forward": "forward_us"}.get(field, field)
            return self.fault(places[index], code, msg, hint, value, field, self.columns.index(field))

        for line, cells in rows:
            if len(faults) >= MAX_FAULTS_OF_A_FILE:
                break
            if (wrong := self.uneven(line, cells)) is not None:
                faults.append(wrong)
                continue
            places.append(line)
            row = dict(zip(self.columns, cells, strict=True))
            numbers = {"update_us": 0}
            for field, cell in row.items():
                try:
                    if field == "layer":
                        parse_name(cell)
                    else:
                        numbers[field] = _bytes(cell) if field == "parameter_bytes" else units.parse_decimal_us(cell)
                except units.UnitError as error:
                    faults.append(at(len(places) - 1, field, error.code, error.msg, error.hint, cell))
                    numbers[field] = 1
            times = numbers["forward_us"], numbers["backward_us"], numbers["parameter_bytes"], numbers["update_us"]
            layers.append(Layer(row["layer"], *times))

        def of_file(code: str, msg: str, hint: str) -> Fault:
            return Fault(code, "", msg, None, hint, self.name)

        # If all rows have faults, the table is not also reported as empty.
        faults += _table_faults(layers, at, of_file) if layers or not faults else []
        if faults:
            raise ScenarioError(faults)
        return tuple(layers)


def read_model_file(text: str, name: str, source: Source, loc: Loc, request: ComputeRequest) -> LayerTable:
    """Read a model file (`"schema": "gradtide.model/1"`), a Hugging Face configuration, or an op DAG.

    If the file has counts instead of times, times are estimated by the roofline; so are the times of a roofline profile
    if `request` has another device, efficiency or batch. The key at `loc` of the scenario names the file.

    Raises:
        ScenarioError: with every fault of the file.
    """
    data = parse_json(text, name, Decimal)
    file = Source(name, text)
    if isinstance(data, dict) and "ops" in data:
        return _graph_file(text, name, file, request)
    if isinstance(data, dict) and FAMILY in data and "schema" not in data:
        # The text is parsed again with floats instead of Decimal, which only times need.
        return _configuration(parse_json(text, name), name, file, source, loc, request)
    if not isinstance(data, dict) or data.get("schema") != MODEL_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else data
        where: Loc = ("schema",) if isinstance(data, dict) and "schema" in data else ()
        msg = f"{name} {newer_version(found, [MODEL_SCHEMA]) or 'is not a model file'}"
        raise ScenarioError([file.fault("GT032", where, msg, 'it starts { "schema": "gradtide.model/1", …', found)])
    faults = Faults()
    label: Any = data.get("name")
    try:
        parse_name(label)
    except units.UnitError as error:
        faults.append(file.fault("GT032", ("name",), error.msg, error.hint, label))
    for key in data:
        if key not in _MODEL_KEYS:
            faults.append(_unknown(file, (key,), key, _MODEL_KEYS))
    rows = data.get("layers")
    if not isinstance(rows, list):
        faults.append(file.fault("GT032", ("layers",), "`layers` must be a list of objects", "add it", rows))
        raise ScenarioError(faults)
    if len(rows) > MAX_LAYERS:
        raise ScenarioError([_too_many(Failure(file, ("layers",)), len(rows))])
    is_timed = any(isinstance(row, dict) and ("forward_us" in row or "backward_us" in row) for row in rows)
    layers = []
    for index, row in enumerate(rows):
        if len(faults) >= MAX_FAULTS_OF_A_FILE:
            break
        layer, found_faults = _model_row(row, file, ("layers", index), is_timed=is_timed)
        faults += found_faults
        layers.append(layer)
    made = _Profile.of(data.get("profile"))
    sample = data.get("sample")
    is_language = isinstance(sample, str) and sample.startswith(OF_TOKENS)
    device, batch = request.device(made.device), None
    if is_timed and made.is_roofline and not faults and _is_asked_anew(made, rows, request):
        is_timed = False
    if not faults and not is_timed and layers:
        counted = SimpleNamespace(name=label, layers=layers)
        assumed = None if is_language else ASSUMED_DEVICE
        batch = request.batch(made.batch or DEFAULT_BATCH)
        timed, device = _roofline(counted, source, loc, request, batch, own=made.device, assumed=assumed)
    else:
        timed = [Layer(r.name, r.forward_ps, r.backward_ps, r.parameter_bytes, r.update_ps) for r in layers]
    fields = {"name": "name", "forward": "forward_us" if is_timed else "forward_flops"}

    def at(index: int, field: str, code: str, msg: str, hint: str, value: Any) -> Fault:
        return file.fault(code, ("layers", index, fields[field]), msg, hint, value)

    if not any(fault.loc.endswith("name") for fault in faults):
        checked = timed if not faults else [row._replace(forward_ps=1) for row in timed]
        faults += _table_faults(checked, at, Failure(file, ("layers",)))
    if faults:
        raise ScenarioError(faults)
    left_out = () if device.times_of is None else (_other_device(name, device),)
    written = layers_table(label, timed, device=device.times_of or (made.device if is_timed else device.name))
    return LayerTable(
        label, tuple(timed), written, is_timed, device, batch=batch, left_out=left_out, is_language=is_language
    )


@dataclass(frozen=True)
class _Profile:
    """The part `profile` of a model file, i.e. how `gradtide profile` made it; invalid values are None."""

    device: str | None
    is_roofline: bool
    batch: int | None

    @classmethod
    def of(cls, said: Any) -> "_Profile":
        said = said if isinstance(said, dict) else {}
        device, batch = said.get("device"), said.get("batch")
        try:
            parse_name(device)
        except units.UnitError:
            device = None
        is_count = type(batch) is int and 1 <= batch <= 1_000_000
        return cls(device, said.get("method") == "roofline", batch if is_count else None)


def _is_asked_anew(made: _Profile, rows: Sequence[Any], request: ComputeRequest) -> bool:
    """Return whether the times of a profile with counts are estimated anew, for another device, efficiency or batch."""
    compute = request.compute
    is_other = request.device(made.device).times_of is not None
    is_other = is_other or compute.is_given("efficiency") or compute.is_given("batch")
    return is_other and all("forward_flops" in row and "activation_bytes" in row for row in rows)


def _other_device(name: str, device: JobDevice) -> str:
    return (
        f"{name} has times of {device.times_of}, which stay unchanged; {device.name} only determines which runtime can "
        "carry out a plan"
    )


OF_TOKENS = "sequence of "
"""In the model file of a language model, the description of a sample begins with this."""
DEFAULT_BATCH = 32
"""Default mini-batch of a worker in samples, for models whose times are estimated from counts."""
DEFAULT_SEQUENCES = 1
"""Default mini-batch of a worker for a Hugging Face configuration: one sequence, as the micro-batch with `parallel`."""
NAMED = "_name_or_path"
"""Field in which Hugging Face transformers stores the model's name or path in a configuration."""


def _label(data: dict[str, Any], name: str, model: Architecture) -> str:
    """Return the name in results of a configuration whose file is `name`; most files are called `config.json`."""
    named = data.get(NAMED)
    last = Path(named).name if isinstance(named, str) else ""
    return Path(name).stem if Path(name).stem != "config" else last or model.family


def _without_nulls(value: Any) -> Any:
    """Copy a JSON value without nulls, which TOML cannot represent."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value if one is not None] if isinstance(value, list) else value


def _configuration(
    data: dict[str, Any],
    name: str,
    file: Source | Under,
    source: Source,
    loc: Loc,
    request: ComputeRequest,
) -> LayerTable:
    """Return the modules of a Hugging Face configuration as layers without times; `with_times` adds them."""
    try:
        model = Architecture.of(data)
    except FieldError as error:
        value = data.get(error.field)
        raise ScenarioError([file.fault("GT039", (error.field,), error.msg, error.hint, value)]) from None
    where, compute = (*loc[:-1], "compute", "seq"), request.compute
    if compute.seq is None:
        hint = "write the tokens of a sequence that you train with, as in compute = { seq = 2048 }"
        raise ScenarioError([source.fault("GT010", where, f"`seq` is missing, and {name} does not state it", hint)])
    if model.longest is not None and compute.seq > model.longest:
        msg = f"the model has learned {model.longest} positions, and a sequence has {compute.seq} tokens"
        raise ScenarioError([source.fault("GT014", where, msg, f"write at most {model.longest}", compute.seq)])
    label = _label(data, name, model)
    modules = tuple(Layer(module.name, 0, 0, module.parameters) for module in model.modules())
    written = {**_without_nulls(data), NAMED: label}
    batch = request.batch(DEFAULT_SEQUENCES)
    return LayerTable(
        label,
        modules,
        written,
        False,
        request.device(),
        batch=batch,
        seq=compute.seq,
        architecture=model,
        is_language=True,
    )


def with_times(table: LayerTable, source: Source, loc: Loc, request: ComputeRequest) -> LayerTable:
    """Return `table`, made from a Hugging Face configuration, with the times of a worker that has the whole model.

    A sample is a sequence of `compute.seq` tokens.

    Raises:
        ScenarioError: if no device is named, or an unknown one.
    """
    from gradtide.presets import LayerPreset
    from gradtide.roofline import STORED_BYTES_PER_ELEMENT as ELEMENT

    assert table.architecture is not None
    assert table.seq is not None
    assert table.batch is not None
    counted = [
        LayerPreset(work.name, ELEMENT * work.parameters, work.flops, ELEMENT * work.elements)
        for work in table.architecture.works(table.seq)
    ]
    model = SimpleNamespace(name=table.label, layers=counted)
    layers, device = _roofline(model, source, loc, request, table.batch)
    is_named = isinstance(table.written, str)
    written = table.written if is_named else layers_table(table.label, layers, device=device.name)
    return replace(table, layers=tuple(layers), written=written, device=device)


def _graph_file(text: str, name: str, file: Source, request: ComputeRequest) -> LayerTable:
    data = parse_json(text, name)
    unit = data.get("time_unit")
    if not isinstance(unit, str) or unit not in _TICKS_PS:
        msg = "`time_unit` is missing" if unit is None else f"{units.describe(unit)} is not a unit of time"
        fault = file.fault("GT010" if unit is None else "GT013", ("time_unit",), msg, 'write "time_unit": "ns"', unit)
        raise ScenarioError([fault])
    label = str(data.get("name") or data.get("model") or Path(name).stem)
    own = data.get("device")
    return _graph(data, label, unit, file, request, own if isinstance(own, str) and own != MEASURED else None)


def _graph(
    data: dict[str, Any], label: str, unit: str, source: Source | Under, request: ComputeRequest, own: str | None = None
) -> LayerTable:
    """Return a table with a graph of ops, and a layer for each recv of the graph. Times of transfers are ignored."""
    dag = op_dag(data, source)
    try:
        parse_name(label)
    except units.UnitError as error:
        raise ScenarioError([source.fault("GT032", ("name",), error.msg, error.hint, label)]) from None
    rows = [(index, op) for index, op in enumerate(dag.ops) if op.kind == "recv"]
    layers = [Layer(op.name or f"op{op.id}", 0, 0, op.bytes) for _, op in rows]
    seen: set[str] = set()
    for (index, _), layer in zip(rows, layers, strict=True):
        if layer.name in seen:
            msg = f'two recvs have the name "{layer.name[:80]}"'
            raise ScenarioError([source.fault("GT034", ("ops", index, "name"), msg, "rename one", layer.name)])
        seen.add(layer.name)
    if not any(op.time for op in dag.ops if op.kind == "comp"):
        msg, hint = "no op takes any time", "give the ops their times"
        raise ScenarioError([source.fault("GT036", ("ops",), msg, hint)])
    ticks_ps = _TICKS_PS[unit]
    ops = tuple(replace(op, time=op.time * ticks_ps if op.kind == "comp" else 0) for op in dag.ops)
    graph = replace(dag, ops=ops, time_unit="ps")
    device = request.device(own)
    left_out = () if device.times_of is None else (_other_device(label, device),)
    written = graph_table(dag, label, unit, own)
    return LayerTable(label, tuple(layers), written, True, device, graph, source, left_out=left_out)


def graph_table(dag: OpDag, label: str, unit: str, device: str | None = None) -> dict[str, Any]:
    """Return a graph of ops as an inline table `model` of a scenario."""
    table: dict[str, Any] = {"kind": "graph", "name": label} | ({"time_unit": unit} if unit else {})
    table |= {} if device is None else {"device": device}
    table["target"] = dag.target
    if dag.inference_target is not None:
        table["inference_target"] = dag.inference_target
    return table | {"ops": [_op_row(op) for op in dag.ops]}


def _op_row(op: Op) -> dict[str, Any]:
    row: dict[str, Any] = {"id": op.id, "name": op.name, "kind": op.kind, "inputs": list(op.inputs)}
    if op.kind == "recv":
        return row | {"time": 0, "bytes": op.bytes}
    row |= {"time": op.time, "param_only": op.param_only}
    return row | {"updates": list(op.updates)} if op.updates else row


def _model_row(row: Any, file: Source, loc: Loc, *, is_timed: bool) -> tuple[Any, list[Fault]]:
    """Parse a layer of a model file; return it, with zeros for missing and faulty fields, and the faults."""
    times = {"forward_ps": 0, "backward_ps": 0, "update_ps": 0}
    counts = {"parameter_bytes": 0, "forward_flops": 0, "activation_bytes": 0}
    result = SimpleNamespace(name="", **times, **counts, winograd=False)
    if not isinstance(row, dict):
        msg = f"expected an object, found {units.describe(row)}"
        return result, [file.fault("GT033", loc, msg, 'write { "name": …, … }', row)]
    needed = ("name", "parameter_bytes") + (
        ("forward_us", "backward_us") if is_timed else ("forward_flops", "activation_bytes")
    )
    faults = []
    for key in needed:
        if key not in row:
            msg = f"`{key}` is missing"
            hint = "every layer has " + ", ".join(needed)
            faults.append(file.fault("GT033", (*loc, key), msg, hint, None))
    for key, value in row.items():
        at = (*loc, key)
        if key not in _LAYER_KEYS:
            faults.append(_unknown(file, at, key, _LAYER_KEYS))
            if len(faults) >= MAX_FAULTS_OF_A_FILE:
                break
            continue
        try:
            if key == "name":
                parse_name(value)
                result.name = value
            elif key.endswith("_us"):
                if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
                    what = units.describe(value)
                    raise units.UnitError("GT033", f"{what} is not a number of microseconds", "write 12.5")
                setattr(result, key[:-3] + "_ps", units.parse_decimal_us(_plain_number(value)))
            elif key == "winograd":
                if not isinstance(value, bool):
                    raise units.UnitError("GT033", f"expected true or false, found {units.describe(value)}", "")
                result.winograd = value
            else:
                setattr(result, key, _count(value, key))
        except units.UnitError as error:
            faults.append(file.fault(error.code, at, error.msg, error.hint, _plain_input(value)))
    return result, faults


def _preset(name: str, source: Source, loc: Loc, request: ComputeRequest) -> LayerTable:
    from gradtide import presets

    if name in presets.language_names():
        config = presets.configuration(name)
        table = _configuration(config, name, Under(source, loc), source, loc, request)
        return replace(table, written=name)
    try:
        model = presets.model(name)
    except KeyError:
        names = [*presets.model_names(), *presets.language_names()]
        hint = did_you_mean(name, names, "gradtide presets models lists the names", '"{}"', kind="model")
        if Path(name).suffix or "/" in name:
            hint += "; a file ends in .csv or .json"
        raise ScenarioError([source.fault("GT030", loc, f'unknown model "{name}"', hint, name)]) from None
    batch, is_language = request.batch(DEFAULT_BATCH), model.is_language
    layers, device = _roofline(model, source, loc, request, batch, assumed=None if is_language else ASSUMED_DEVICE)
    return LayerTable(name, tuple(layers), name, False, device, batch=batch, is_language=is_language)


def _preset_graph(name: str, source: Source, loc: Loc, request: ComputeRequest) -> LayerTable:
    from gradtide.presets import graphs

    batch = request.batch(graphs.graph(name).batch)
    machine, device = _device(source, loc, request, assumed=ASSUMED_DEVICE)
    layers, graph = _timed_graph(name, machine, batch)
    return LayerTable(name, layers, name, False, device, graph, Under(source, loc), batch=batch)


@lru_cache(maxsize=16)
def _timed_graph(name: str, machine: "Device", batch: int) -> tuple[tuple[Layer, ...], OpDag]:
    """Return layers and ops of a built-in op graph. Cached, because studies request a graph hundreds of times."""
    from gradtide.presets import graphs

    # The rate has no effect, because the simulated network determines the times of transfers.
    data = graphs.graph_document(name, machine, batch, "train", rate_bps=10**9)
    table = _graph(data, name, data["time_unit"], Source(), ComputeRequest(Compute()))
    assert table.graph is not None
    return table.layers, table.graph


def _roofline(
    model: Any,
    source: Source,
    loc: Loc,
    request: ComputeRequest,
    batch: int,
    *,
    own: str | None = None,
    assumed: str | None = None,
) -> tuple[list[Layer], JobDevice]:
    from gradtide.roofline import roofline

    machine, device = _device(source, loc, request, own=own, assumed=assumed)
    return list(roofline(model, machine, batch)), device


def _device(
    source: Source, loc: Loc, request: ComputeRequest, *, own: str | None = None, assumed: str | None = None
) -> tuple["Device", JobDevice]:
    """Return the device, with `compute.efficiency` if it is given, and where the device is named.

    Args:
        source: text of the scenario, for faults.
        loc: location of `model`.
        request: the table `compute`, and `cluster.device`.
        own: device of the model's file.
        assumed: default device; None if the scenario must name a device.
    """
    from gradtide import presets

    chosen = replace(request.device(own, assumed), times_of=None)
    where = (*loc[:-1], "compute", "device")
    if chosen.name is None:
        msg = "the model needs a device to compute on, and neither the job nor the cluster names one"
        raise ScenarioError([source.fault("GT010", where, msg, HINT)])
    if chosen.origin == "cluster":
        where = ("cluster", "device")
    try:
        found = presets.device(chosen.name)
    except KeyError:
        raise ScenarioError([source.fault("GT031", where, *unknown_device(chosen.name), chosen.name)]) from None
    compute = request.compute
    if compute.efficiency_ppm is not None:
        return replace(found, compute_efficiency=compute.efficiency_ppm / PPM), chosen
    if found.compute_efficiency is None:
        msg = f"{found.name} has no known efficiency: {found.basis}"
        hint = (
            f"write efficiency = 0.4 beside the device, or --efficiency 0.4: the share of its "
            f"{found.peak_flops / 1e12:g} TFLOP/s that your training reaches; or take a profile of your model as model"
        )
        if chosen.origin == "cluster":
            msg, where = (
                f"the cluster computes on {found.name}, which {msg[len(found.name) + 1 :]}",
                (
                    *loc[:-1],
                    "compute",
                    "efficiency",
                ),
            )
        raise ScenarioError([source.fault("GT010", where, msg, hint, chosen.name)])
    return found, chosen


def _inline(model: InlineModel, source: Source, loc: Loc, request: ComputeRequest) -> LayerTable:
    layers = [
        Layer(r.name, r.forward_ps, r.backward_ps, r.parameter_bytes, r.update_ps, r.is_host) for r in model.layers
    ]

    def at(index: int, field: str, code: str, msg: str, hint: str, value: Any) -> Fault:
        return source.fault(code, (*loc, "layers", index, field), msg, hint, value)

    fail = Failure(source, (*loc, "layers"))
    if len(layers) > MAX_LAYERS:
        raise ScenarioError([_too_many(fail, len(layers))])
    faults = _table_faults(layers, at, fail)
    if faults:
        raise ScenarioError(faults)
    bucketed, left_out = model.bucketed, tuple(model.left_out)
    rows = layers_table(
        model.name, layers, bucketed=bucketed, source=model.source, device=model.device, left_out=left_out
    )
    device = request.device(model.device)
    if device.times_of is not None:
        left_out = (*left_out, _other_device(model.name, device))
    return LayerTable(model.name, tuple(layers), rows, True, device, bucketed=bucketed, left_out=left_out)


def _table_faults(layers: Sequence[Layer], at: At, fail: Fail) -> list[Fault]:
    if not layers:
        return [fail("GT035", "the model has no layers", "write at least one layer")]
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for index, layer in enumerate(layers):
        if layer.name in seen and len(faults) < MAX_FAULTS_OF_A_FILE:
            msg = f'the layer name "{layer.name}" occurs twice'
            hint = f"layer {seen[layer.name]} has it too (counting from 0); rename one"
            faults.append(at(index, "name", "GT034", msg, hint, layer.name))
        seen.setdefault(layer.name, index)
        if layer.is_host and layer.parameter_bytes:
            msg, hint = "time of the host has no parameters", 'write parameters = "0B", or no host = true'
            faults.append(at(index, "parameters", "GT036", msg, hint, layer.parameter_bytes))
    if not any((layer.forward_ps or layer.backward_ps) and not layer.is_host for layer in layers):
        hint = "give forward and backward times; are the columns in the right order and in microseconds?"
        faults.append(at(0, "forward", "GT036", "every forward and backward time is zero", hint, 0))
    return faults


def _bytes(text: str) -> int:
    if not re.fullmatch(r"\d{1,20}", text, re.ASCII) or int(text) > units.U64_MAX:
        hint = "write a whole number of bytes, as in 4096"
        raise units.UnitError("GT033", f'"{text[:40]}" is not a number of bytes', hint)
    return int(text)


def _count(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= units.U64_MAX:
        what = units.describe(_plain_input(value))
        raise units.UnitError("GT033", f"{what} is not a whole number from 0", f'write "{key}": 4096')
    return value


def _plain_number(value: "int | Decimal") -> str:
    """Return the text of a JSON number, without an exponent from 1e-29 to 1e30."""
    if isinstance(value, Decimal) and -30 < value.adjusted() < 30:
        return f"{value:f}"
    return str(value)


def _plain_input(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def _unknown(file: Source, loc: Loc, key: str, known: Sequence[str]) -> Fault:
    hint = did_you_mean(key, known, "known fields are " + ", ".join(known))
    return file.fault("GT032", loc, f"unknown field `{key}`", hint, key, at_key=True)


def _too_many(fail: Fail, count: int) -> Fault:
    return fail("GT050", f"{count:,} layers are too many", f"a model has at most {MAX_LAYERS:,}; merge layers")


def read_ranking(text: str, name: str) -> list[tuple[str, Callable[[str, str], Fault]]]:
    """Return the layer names of an order file, most urgent first, each with a function (message, hint) -> fault."""
    found: list[tuple[str, Callable[[str, str], Fault]]] = []
    offset = 0
    for line in text.split("\n"):
        if layer := line.strip():
            found.append((layer, partial(_ranking_fault, text, offset, offset + len(line), layer, name)))
        offset += len(line) + 1
    return found


def _ranking_fault(text: str, start: int, stop: int, layer: str, name: str, msg: str, hint: str) -> Fault:
    return pointed(text, start, stop, Fault("GT037", "", msg, layer, hint, name))
