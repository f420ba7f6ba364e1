"""Keys of a model that is written in the scenario itself."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from gradtide import units
from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import Duration, FileName, Form, Name, Size, Time


class InlineLayer(Table):
    """One layer. The times are those of one worker for one mini-batch."""

    name: Name = key(examples=["conv1"])
    """Name of the layer, unique in the model."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time."""
    parameter_bytes: Size = key(alias="parameters", examples=["4MB"])
    """Size of the layer's gradient. Write "0B" for a layer that sends nothing."""
    update_ps: Time = key(default="0s", examples=["50us"])
    """Time to apply the aggregated gradient."""


class InlineModel(Table):
    """A model written in the scenario itself, layer by layer."""

    name: Name = key(default="inline", examples=["my-model"])
    """Name of the model in results."""
    layers: list[InlineLayer] = key(
        examples=[[{"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "4MB"}]]
    )
    """Layers from the input side to the output side."""
    bucketed: bool = key(default=False, examples=[True])
    """Whether the layers are already buckets, like those of a trace. `schedule.fusion` is then "0B" by default."""
    source: FileName | None = key(default=None, examples=["step 7 of rank 0"])
    """Where the figures come from. It changes no result."""
    left_out: list[FileName] = key(default=[], examples=[["events of an unknown category: 1 (hpu_op), left out"]])
    """What the source contains and the layers do not: one warning for each item. It changes no result."""


class ThesisModel(Table):
    """The synthetic layer table of Gao (2020), section 4.2: deeper layers are larger and have shorter forward times."""

    kind: Literal["thesis"] = key(default="thesis")
    """Name of the synthetic table."""
    layers: int = key(default=100, ge=2, examples=[50, 100])
    """Number of layers L."""
    size_bytes: Size = key(default="100MB")
    """Nominal size M. The unit s = floor(2M / 9L) bytes gives layers of s, 4s and 12s."""
    time_ps: Duration = key(default="900ms", examples=["900ms", "2240ms"])
    """Nominal compute time T of an iteration: one third forward, two thirds backward. `compute.scale_to` replaces it
    with precision = "float32", and otherwise stretches the table."""
    precision: Literal["exact", "float32"] = key(default="exact")
    """exact: each time is rounded to a picosecond. float32: times are single-precision milliseconds cut to whole
    nanoseconds, as in the author's program of chapter 5. They are some nanoseconds shorter, which can change background
    flows."""


def _rows(value: object) -> list[object]:
    if not isinstance(value, list):
        msg = f"expected a list of tables, found {units.describe(value)}"
        hint = 'write ops = [{ id = 0, kind = "recv", inputs = [], time = 0, bytes = 4096 }]'
        raise units.UnitError("GT011", msg, hint)
    return value


Rows = Annotated[list[Any], Form(_rows, {"type": "array", "items": {"type": "object"}})]


class GraphModel(Table):
    """A graph of ops written in the scenario itself."""

    kind: Literal["graph"] = key(default="graph")
    """Marks the table as a graph."""
    name: Name = key(default="graph", examples=["my-model"])
    """Name of the model in results."""
    time_unit: Literal["ps", "ns", "us", "ms", "s"] = key(examples=["ns"])
    """Unit of the times of ops."""
    target: int = key(ge=0, examples=[3])
    """Id of the op that ends the computation of an iteration."""
    inference_target: int | None = key(default=None, ge=0, examples=[1])
    """Id of the op that ends the forward pass. Default: the whole graph is a forward pass."""
    ops: Rows = key(examples=[[{"id": 0, "kind": "recv", "inputs": [], "time": 0, "bytes": 4096}]])
    """Ops as in an op DAG file (docs/models/orders.md): id, kind, inputs and time. A recv also has its `bytes`. Another
    op may have `updates`: the ids of the recvs whose gradients it completes."""


def _model_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<name>"
    if isinstance(value, GraphModel) or (isinstance(value, dict) and (value.get("kind") == "graph" or "ops" in value)):
        return "<graph>"
    if isinstance(value, (InlineModel, ThesisModel)):
        return "<table>" if isinstance(value, InlineModel) else "<thesis>"
    if isinstance(value, dict):
        synthetic = "kind" in value or (type(value.get("layers")) is int) or "time" in value
        return "<thesis>" if synthetic else "<table>"
    return None


Model = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[InlineModel, Tag("<table>")]
    | Annotated[ThesisModel, Tag("<thesis>")]
    | Annotated[GraphModel, Tag("<graph>")],
    Discriminator(_model_tag),
]
