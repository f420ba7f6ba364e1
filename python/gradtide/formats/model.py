"""Converts models between two tables of layers: CSV, and the JSON that `gradtide profile` writes."""

import csv
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradtide.errors import Fault, ScenarioError
from gradtide.formats.text import Options, whole_text, write
from gradtide.layers import Layer
from gradtide.scenario.keys.job import Compute
from gradtide.scenario.source import Source
from gradtide.scenario.tables import MODEL_SCHEMA, ComputeRequest, read_layers_csv, read_model_file
from gradtide.units import PS_PER_US, format_decimal


def convert(source: Path, form: str, target: Path | None, into: str, options: Options) -> dict[str, Any]:
    """Read a model, write it, and return its figures.

    Raises:
        ScenarioError: with every fault of the file, or if the model is a graph of ops or has no times.
    """
    text = whole_text(source)
    label, layers = (
        _model(text, str(source), options) if form == "model" else (source.stem, read_layers_csv(text, str(source)))
    )
    if target is not None:
        write(target, _model_json(label, layers) if into == "model" else _csv(layers, str(source)))
    return {
        "layers": len(layers),
        "parameter_bytes": sum(layer.parameter_bytes for layer in layers),
        "forward_ms": sum(layer.forward_ps for layer in layers) / 10**9,
        "backward_ms": sum(layer.backward_ps for layer in layers) / 10**9,
    }


def _model(text: str, name: str, options: Options) -> tuple[str, Sequence[Layer]]:
    table = read_model_file(text, name, Source(name), (), ComputeRequest(Compute()))
    said = ""
    if table.graph is not None:
        said = "it is a graph of ops, whose dependencies a layer table cannot represent"
    elif not table.is_timed:
        said = "its layers have operations but no times, which depend on a device"
    if said:
        hint = "gradtide profile writes times; a scenario can read this file unchanged"
        raise ScenarioError([Fault("GT032", "", said, None, hint, name)])
    document = json.loads(text)
    layer_keys = {key for row in document["layers"] for key in row} - {f"{key}_us" for key in _TIMES}
    left = sorted({*document, *layer_keys} - {"schema", "name", "layers", "parameter_bytes"})
    if left:
        options.notes.append(f"left out, because a layer table has no such columns: {', '.join(left)}")
    return table.label, table.layers


_TIMES = ("forward", "backward", "update")


def _times(layer: Layer) -> dict[str, str]:
    times = {"forward_us": layer.forward_ps, "backward_us": layer.backward_ps, "update_us": layer.update_ps}
    return {key: str(format_decimal(Fraction(time_ps, PS_PER_US))) for key, time_ps in times.items()}


def _model_json(label: str, layers: Sequence[Layer]) -> str:
    rows = []
    for layer in layers:
        times = _times(layer)
        if not layer.update_ps:
            del times["update_us"]
        name = json.dumps(layer.name, ensure_ascii=False)
        cells = "".join(f', "{key}": {time}' for key, time in times.items())
        rows.append(f'  {{"name": {name}, "parameter_bytes": {layer.parameter_bytes}{cells}}}')
    head = f' "schema": "{MODEL_SCHEMA}",\n "name": {json.dumps(label, ensure_ascii=False)},\n "layers": [\n'
    return "{\n" + head + ",\n".join(rows) + "\n ]\n}\n"


def _csv(layers: Sequence[Layer], source: str) -> str:
    blank = next((layer.name for layer in layers if layer.name != layer.name.strip()), None)
    if blank is not None:
        msg = f'the name "{blank[:40]}" begins or ends with a blank, which a layer table cannot represent'
        raise ScenarioError([Fault("GT018", "name", msg, blank, "rename the layer", source)])
    updates = any(layer.update_ps for layer in layers)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["layer", "forward_us", "backward_us", "parameter_bytes", *(["update_us"] * updates)])
    for layer in layers:
        forward, backward, update = _times(layer).values()
        table.writerow([layer.name, forward, backward, layer.parameter_bytes, *([update] * updates)])
    return file.getvalue()
