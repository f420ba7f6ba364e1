"""Every key of a scenario file: its type, default, unit and meaning; source of schema and reference.

Quantities are held as whole picoseconds, bytes and bits per second and written back with their units. What
one key means for another is not here but in `resolve`.
"""

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from gradtide import units
from gradtide.collectives import CollectiveKind

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
PPM = 1_000_000
MAX_NAME = 200
MAX_FILE_NAME = 4000
MAX_GROUP = 1_000_000
MAX_DEPTH = 1024
MAX_ANNOUNCED = 75
"""Kang et al. (2021), fig. 7: four bits count in steps of five packets."""


def _checked(parse: Callable[[object], T], *, positive: str = "") -> PlainValidator:
    """Make a validator from a parser of `units`; `positive` says why the quantity cannot be zero."""

    def validate(value: object) -> T:
        try:
            parsed = parse(value)
        except units.UnitError as error:
            raise _custom(error.code, error.msg, error.hint) from None
        if positive and parsed == 0:
            raise _custom("GT026", "the value is zero", positive)
        return parsed

    return PlainValidator(validate)


def _custom(code: str, msg: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{msg}", {"msg": msg, "hint": hint})


def _not_empty(buffer: units.Buffer) -> units.Buffer:
    if buffer.size == 0:
        raise _custom("GT026", "the value is zero", 'write a buffer above 0, as in "1000pkt" or "1MB"')
    return buffer


def _packets(value: object) -> int:
    try:
        return units.parse_packets(value)
    except units.UnitError as error:
        raise _custom(error.code, error.msg, error.hint) from None


def _fifth(packets: int) -> int:
    if packets % 5 or packets > MAX_ANNOUNCED:
        msg = f"a threshold of {packets:,} packets cannot be announced"
        raise _custom("GT014", msg, f'a packet has four bits for it: write a multiple of 5 up to "{MAX_ANNOUNCED}pkt"')
    return packets


def _schema(pattern: str, what: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "title": what, "examples": list(examples)})


_TIME = r"^\s*\d+(\.\d+)?\s*(ps|ns|us|µs|ms|s|min|h)\s*$"
_SIZE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?[Bb]\s*$"
_BUFFER = r"^\s*\d+(\.\d+)?\s*(k?pkt|([kKMGT]|[KMGT]i)?[Bb])\s*$"
_RATE = r"^\s*\d+(\.\d+)?\s*([kKMGT]|[KMGT]i)?(bps|bit/s|b/s|Bps|B/s)\s*$"

_time_out = PlainSerializer(units.format_time, return_type=str)
_bytes_out = PlainSerializer(units.format_bytes, return_type=str)

Time = Annotated[int, _checked(units.parse_time), _time_out, _schema(_TIME, "time", "10us", "0.9s")]
Duration = Annotated[
    int,
    _checked(units.parse_time, positive='write a time above 0, as in "900ms"'),
    _time_out,
    _schema(_TIME, "time above 0", "900ms", "12s"),
]
Size = Annotated[int, _checked(units.parse_bytes), _bytes_out, _schema(_SIZE, "size", "6.28MB", "64KiB")]
PartSize = Annotated[
    int,
    _checked(units.parse_bytes, positive='write a size above 0, as in "1MB", or leave the key out'),
    _bytes_out,
    _schema(_SIZE, "size above 0", "1MB", "64KiB"),
]


def _size_or_adaptive(value: object) -> int | Literal["adaptive"]:
    return "adaptive" if value == "adaptive" else units.parse_bytes(value)


Fusion = Annotated[
    int | Literal["adaptive"],
    _checked(_size_or_adaptive),
    PlainSerializer(lambda value: value if value == "adaptive" else units.format_bytes(value), return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _SIZE, "title": "size", "examples": ["6.28MB", "64KiB"]},
                {"const": "adaptive"},
            ]
        }
    ),
]
Rate = Annotated[
    int,
    _checked(units.parse_rate, positive='nothing would ever arrive; write a rate above 0, as in "10Gbps"'),
    PlainSerializer(units.format_rate, return_type=str),
    _schema(_RATE, "rate", "10Gbps", "100Mbps", "4GB/s"),
]
Frequency = Annotated[
    Fraction,
    _checked(units.parse_frequency, positive='leave the table out, or write a rate above 0, as in "23/s"'),
    PlainSerializer(units.format_frequency, return_type=str),
    _schema(r"^\s*\d+(\.\d+)?\s*/(s|ms|us|min|h)\s*$", "events per time", "23/s"),
]
Packets = Annotated[
    int,
    _checked(units.parse_packets, positive='write a number of packets above 0, as in "1000pkt"'),
    PlainSerializer(units.format_packets, return_type=str),
    _schema(r"^\s*\d+\s*k?pkt\s*$", "packets", "1000pkt"),
]
Buffer = Annotated[
    units.Buffer,
    _checked(units.parse_buffer),
    AfterValidator(_not_empty),
    PlainSerializer(units.format_buffer, return_type=str),
    _schema(_BUFFER, "packets or size", "1000pkt", "1MB"),
]
Ratio = Annotated[
    Fraction,
    _checked(units.parse_ratio),
    PlainSerializer(units.format_ratio, return_type=str),
    WithJsonSchema({"type": ["string", "number"], "title": "ratio", "examples": ["1/4", "1"]}),
]


Fifth = Annotated[
    int,
    _checked(units.parse_packets),
    AfterValidator(_fifth),
    PlainSerializer(units.format_packets, return_type=str),
    _schema(r"^\s*\d+\s*pkt\s*$", "multiple of 5 packets up to 75", "10pkt"),
]


def _announce(value: object) -> bool | int:
    return value if isinstance(value, bool) else _fifth(_packets(value))


def _announce_text(value: bool | int) -> bool | str:
    return value if isinstance(value, bool) else units.format_packets(value)


Announce = Annotated[
    bool | int,
    PlainValidator(_announce),
    PlainSerializer(_announce_text),
    WithJsonSchema({"type": ["boolean", "string"], "title": "true, false or packets", "examples": [True, "15pkt"]}),
]


def _ppm(low: float, high: float, *, has_zero: bool) -> Callable[[object], int]:
    """Make a parser of a bare number into millionths; `low` itself is allowed unless it is a 0 that means nothing."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise units.UnitError(
                "GT011",
                f"expected a number, found {units.describe(value)}",
                "write it without quotes or unit",
            )
        ppm = 0
        if math.isfinite(value) and low <= value <= high:
            ppm = int((Decimal(repr(value)) * PPM).to_integral_value(ROUND_HALF_UP))
        if ppm == 0 and not (has_zero and value == 0):
            span = f"from {low:g} to {high:g}" if low or has_zero else f"above 0 and at most {high:g}"
            raise units.UnitError(
                "GT014",
                f"{units.describe(value)} is out of range",
                f"write a number {span}, in steps of 1e-6",
            )
        return ppm

    return parse


def _ppm_text(ppm: int) -> float:
    return ppm / PPM


def _number(low: float, high: float, *examples: float, has_zero: bool = False) -> Any:
    bound = {"minimum": low} if low or has_zero else {"exclusiveMinimum": 0}
    schema = {"type": "number", **bound, "maximum": high, "examples": list(examples)}
    return (
        _checked(_ppm(low, high, has_zero=has_zero)),
        PlainSerializer(_ppm_text, return_type=float),
        WithJsonSchema(schema),
    )


def _cumulated(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = units.describe(value)
        raise units.UnitError("GT011", f"expected a number, found {what}", "write a share from 0 to 1, as in 0.15")
    if not 0 <= value <= 1:
        raise units.UnitError("GT014", f"{units.describe(value)} is out of range", "write a share from 0 to 1")
    return float(value)


Cumulated = Annotated[
    float,
    _checked(_cumulated),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1, "examples": [0.15]}),
]
_alpha_validator, _alpha_out, _alpha_schema = _number(0, 1024, 1.0)
_share_validator, _share_out, _share_schema = _number(0, 1, 0.95)
_factor_validator, _factor_out, _factor_schema = _number(1, 100, 1.1)
_variation_validator, _variation_out, _variation_schema = _number(0, 0.5, 0.05, has_zero=True)
_tolerance_validator, _tolerance_out, _tolerance_schema = _number(0, 1000, 0.02, has_zero=True)
_part_validator, _part_out, _part_schema = _number(0, 1, 0.005, has_zero=True)
Part = Annotated[int, _part_validator, _part_out, _part_schema]
Tolerance = Annotated[int, _tolerance_validator, _tolerance_out, _tolerance_schema]
Share = Annotated[int, _share_validator, _share_out, _share_schema]
Alpha = Annotated[int, _alpha_validator, _alpha_out, _alpha_schema]
Factor = Annotated[int, _factor_validator, _factor_out, _factor_schema]
Variation = Annotated[int, _variation_validator, _variation_out, _variation_schema]


def _text(longest: int) -> Any:
    def validate(value: object) -> str:
        if not isinstance(value, str):
            raise _custom("GT011", f"expected a text, found {units.describe(value)}", "write it in quotes")
        if not value.strip() or len(value) > longest or not value.isprintable():
            raise _custom(
                "GT018",
                f"{units.describe(value)} cannot be a name",
                f"a name is 1 to {longest} printable characters, not all blank",
            )
        return value

    return PlainValidator(validate), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": longest})


_name_validator, _name_schema = _text(MAX_NAME)
_file_validator, _file_schema = _text(MAX_FILE_NAME)
Name = Annotated[str, _name_validator, _name_schema]
FileName = Annotated[str, _file_validator, _file_schema]


class Notes:
    """What a key is to the code, beside its type and bounds; nothing of it is in the schema.

    Attributes:
        core: whether the core's spec has it as it is, under the field's name.
        short: its name in `Scenario.replace`; `None` for the key's own name, where its table gives names.
    """

    __slots__ = ("core", "short")

    def __init__(self, *, core: bool, short: str | None) -> None:
        self.core = core
        self.short = short

    def __call__(self, schema: dict[str, Any]) -> None:
        """Leave the schema as it is."""


def key(default: Any = ..., *, examples: list[Any], core: bool = True, short: str | None = None, **bounds: Any) -> Any:
    """Declare a key: the one place where it is written.

    The field's name is the core's, with the unit that it is held in (`overhead_ps`); the file's key is that name
    without the unit (`overhead`).

    Args:
        default: what holds where the key is not given, as a file would write it.
        examples: values for the schema and for hints.
        core: whether the core's spec has the field as it is; what it has in another form is a hook of `spec`.
        short: name of the key in `Scenario.replace`, if that of the key is another one's.
        bounds: `ge` and `le`.
    """
    return Field(default=default, examples=examples, json_schema_extra=Notes(core=core, short=short), **bounds)


_UNIT = re.compile(r"_(ps|bytes|bps|ppm|packets|iterations)$")


def _file_key(field: str) -> str:
    return _UNIT.sub("", field)


class Table(BaseModel):
    """A table of the file: nothing unknown, nothing converted, not changed once read."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        alias_generator=_file_key,
    )

    @classmethod
    def declared(cls) -> dict[str, FieldInfo]:
        """Return the keys as a file writes them, in order."""
        return {info.alias or name: info for name, info in cls.model_fields.items()}

    def value(self, key: str) -> Any:
        """Return the value of a key of the file."""
        return getattr(self, _fields(type(self))[key])

    def is_given(self, key: str) -> bool:
        """Return whether the file has a key."""
        return _fields(type(self))[key] in self.model_fields_set

    def core(self) -> dict[str, Any]:
        """Return the fields that the core has as they are, under their names."""
        return {
            name: value.core() if isinstance(value, Table) else value
            for name, info in type(self).model_fields.items()
            if notes(info).core
            for value in (getattr(self, name),)
        }

    def with_values(self, **values: Any) -> "Self":
        """Return the table with fields replaced by values that are known to be right."""
        return self.model_copy(update=values)


@cache
def _fields(table: type[Table]) -> dict[str, str]:
    """Return the field that holds each key of the file."""
    return {info.alias or name: name for name, info in table.model_fields.items()}


def notes(info: FieldInfo) -> Notes:
    """Return what the declaration of a key says to the code."""
    assert isinstance(info.json_schema_extra, Notes)  # every field of a table is made by `key`
    return info.json_schema_extra


# ── model ─────────────────────────────────────────────────────────────────────────────────────────────────


class InlineLayer(Table):
    """One layer: times of one worker for one mini-batch."""

    name: Name = key(examples=["conv1"])
    """Name of the layer; no other layer has it."""
    forward_ps: Time = key(examples=["1ms"])
    """Forward time."""
    backward_ps: Time = key(examples=["2ms"])
    """Backward time."""
    parameter_bytes: Size = key(alias="parameters", examples=["4MB"])
    """Bytes of the layer's gradient; "0B" for a layer that sends nothing."""
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
    """Whether layers are buckets already, as those of a trace: `schedule.fusion` is "0B" then, if nothing is said."""
    source: FileName | None = key(default=None, examples=["step 7 of rank 0"])
    """Where the figures come from; it changes nothing."""
    left_out: list[FileName] = key(default=[], examples=[["events of an unknown category: 1 (hpu_op), left out"]])
    """What the figures' file holds and the layers do not, a warning each; it changes nothing."""


class ThesisModel(Table):
    """The synthetic layer table of Gao (2020), section 4.2: size rises with depth, forward time falls."""

    kind: Literal["thesis"] = key(default="thesis", examples=["thesis"])
    """Which synthetic table."""
    layers: int = key(default=100, ge=2, examples=[50, 100])
    """Number of layers L."""
    size_bytes: Size = key(default="100MB", examples=["100MB"])
    """Nominal size M; a unit of s = floor(2M / 9L) bytes gives layers of s, 4s and 12s."""
    time_ps: Duration = key(default="900ms", examples=["900ms", "2240ms"])
    """Nominal compute time T of an iteration: a third forward, two thirds backward. With precision = "float32",
    `compute.scale_to` takes its place; else it stretches the table."""
    precision: Literal["exact", "float32"] = key(default="exact", examples=["exact"])
    """exact: every time rounded to a picosecond. float32: as the author's program of chapter 5 keeps them, in
    single-precision milliseconds cut to whole nanoseconds; some nanoseconds less, and flows beside the job can tell."""


def _rows(value: object) -> list[object]:
    if not isinstance(value, list):
        msg = f"expected a list of tables, found {units.describe(value)}"
        raise _custom("GT011", msg, 'write ops = [{ id = 0, kind = "recv", inputs = [], time = 0, bytes = 4096 }]')
    return value


Rows = Annotated[list[Any], PlainValidator(_rows), WithJsonSchema({"type": "array", "items": {"type": "object"}})]


class GraphModel(Table):
    """A graph of ops written in the scenario itself."""

    kind: Literal["graph"] = key(default="graph", examples=["graph"])
    """That it is one."""
    name: Name = key(default="graph", examples=["my-model"])
    """Name of the model in results."""
    time_unit: Literal["ps", "ns", "us", "ms", "s"] = key(examples=["ns"])
    """What a tick of a time is."""
    target: int = key(ge=0, examples=[3])
    """Id of the op that ends an iteration's computation."""
    inference_target: int | None = key(default=None, ge=0, examples=[1])
    """Id of the op that ends the forward pass. Default: the graph is a forward pass."""
    ops: Rows = key(examples=[[{"id": 0, "kind": "recv", "inputs": [], "time": 0, "bytes": 4096}]])
    """Ops as in an op DAG file (docs/models/orders.md): id, kind, inputs, time, and for a recv its bytes, for others
    `updates`, the ids of the recvs whose gradient is done then."""


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

# ── job ───────────────────────────────────────────────────────────────────────────────────────────────────


class Straggler(Table):
    """A worker that is slow, always or now and then."""

    worker: int | None = key(default=None, ge=0, examples=[3])
    """Which worker, counted from 0 in the order of the job's hosts. Default: one drawn anew in every iteration."""
    factor_ppm: Factor = key(examples=[1.5])
    """How many times as long it computes."""
    probability_ppm: Share = key(default=1.0, examples=[0.1])
    """Probability that it is slow in an iteration, drawn anew for each."""


class Compute(Table):
    """Device, batch and scale of a job's compute times."""

    device: Name = key(default="V100", examples=["V100", "H100"], core=False)
    """Device preset that turns a model's operations into times; only for models without times of their
    own."""
    efficiency_ppm: Share | None = key(default=None, examples=[0.4], core=False)
    """Share of the device's peak that training reaches: its model FLOPs utilisation without waits for the network.
    Needed for a device whose efficiency nobody published. Default: the device's own (docs/models/compute.md)."""
    batch: int = key(default=32, ge=1, le=1_000_000, examples=[32], core=False)
    """Mini-batch of one worker; only for models without times of their own. Default of a built-in graph: its paper's
    (gradtide presets graph)."""
    scale_to_ps: Duration | None = key(default=None, examples=["900ms"], core=False)
    """Rescale all times of the table so that one iteration computes for exactly this long. Default: as
    the table is."""
    order: Literal["listed", "random", "caramel"] | None = key(
        default=None, examples=["caramel"], core=False, short="compute_order"
    )
    """In which order a worker computes a graph of ops whose gradients a collective aggregates. listed: of the ops that
    can run, the first of the graph; random: any of them, as in frameworks without an order, each worker in one of its
    own that it keeps for the run; caramel: always the update that is cheapest to reach (docs/models/caramel.md).
    Default: listed."""
    overlap_slowdown_ppm: Factor = key(default=1.0, examples=[1.1])
    """Time that a unit of compute takes while a transfer of the job is under way."""
    noise_ppm: Variation = key(default=0.0, examples=[0.05])
    """Coefficient of variation of a worker's compute time. Every worker draws a factor for each iteration, uniform
    within 1 ± √3 · noise, so 1 on average, and all times of that iteration are multiplied by it. Default: all workers
    do the same at the same time."""
    straggler: Straggler | None = key(default=None, examples=[{"worker": 3, "factor": 1.5}])
    """A slow worker. Default: none."""


class Ps(Table):
    """Parameter servers."""

    servers: int | None = key(default=None, ge=1, le=1_000_000, examples=[2], core=False, short="servers")
    """Number of parameter servers, which compute nothing. Default: an eighth of the job's `workers`, at least 1, as in
    Zhang et al. (2017); with pull = "start" a quarter of the workers proper, as in TicTac (2019)."""
    placement: Literal["packed", "distributed", "separate"] | None = key(
        default=None, examples=["distributed"], core=False
    )
    """Which hosts they are. packed: the first of the job's `workers`; distributed: one in each of as many equal
    stretches of them; the others are the workers proper. separate: hosts of their own beside the `workers`, the last
    ones where `hosts` names them all. Default: packed; with pull = "start" separate."""
    pull: Literal["update", "start"] = key(default="update", examples=["start"], core=False)
    """When workers pull. update: a bucket is pushed, summed and pulled at once, as any other collective. start: every
    iteration begins with each worker pulling each parameter in its own order; it computes op by op, pushes each
    gradient when it is there, and the iteration ends with the last update, as in TicTac (docs/models/servers.md)."""
    shards: Literal["bytes", "round_robin"] | None = key(default=None, examples=["round_robin"], core=False)
    """Which parameter is on which server (pull = "start"). bytes: the largest first, each to the server that has the
    fewest bytes; round_robin: in turn, in the order of the model. Default: bytes."""


def _group(value: object) -> int | str:
    if value == "leaf" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_GROUP):
        return value if isinstance(value, int) else "leaf"
    hint = 'write group = 8, or group = "leaf" for the hosts of one edge switch'
    code = "GT014" if isinstance(value, int) and not isinstance(value, bool) else "GT011"
    found = f"{value} is out of range" if code == "GT014" else f"expected a number, found {units.describe(value)}"
    raise _custom(code, found, hint)


Group = Annotated[
    int | str,
    PlainValidator(_group),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_GROUP}, {"const": "leaf"}]}),
]


class Collective(Table):
    """Algorithm that aggregates gradients. The pipe engine knows the ring only."""

    kind: CollectiveKind = key(default="ring", examples=["ring"], core=False)
    """Algorithm: docs/models/collectives.md says what each sends. The last five do not sum gradients: use them with
    task = "exchange", for traffic such as that of experts or sharded models."""
    group: Group | None = key(default=None, examples=["leaf", 8], core=False)
    """Ranks of a group, consecutive ones (butterfly_layered, hierarchical): a number, or "leaf" for as many as one edge
    switch has hosts. Default: "leaf"."""
    inside: Literal["reduce", "ring", "sharded"] | None = key(default=None, examples=["sharded"], core=False)
    """What happens within a group (hierarchical). reduce: a binomial tree to its first rank; ring: a ring all-reduce;
    sharded: a ring reduce-scatter, and all ranks take part between groups. Default: ring, as in Jia et al. (2018)."""
    ps: Ps | None = key(default=None, examples=[{"servers": 2, "placement": "packed"}], core=False)
    """Parameter servers, with kind = "ps"; giving this table is enough."""
    reduction_rate_bps: Rate | None = key(default=None, examples=["20GB/s"])
    """Rate at which a rank adds what it has received to its own, one message after another. Default: it takes no
    time."""
    remainder: Literal["sent", "dropped"] = key(default="sent", examples=["sent"])
    """What a bucket leaves when it is divided by the workers. sent: some parts are a byte longer. dropped: it is not
    sent, as in the simulator of Gao (2020), chapter 5."""


def _depth(value: object) -> int | Literal["adaptive"]:
    if value == "adaptive":
        return "adaptive"
    hint = f'write depth = 4, or depth = "adaptive"; at most {MAX_DEPTH}'
    if isinstance(value, bool) or not isinstance(value, int):
        raise _custom("GT011", f"expected a number, found {units.describe(value)}", hint)
    if not 1 <= value <= MAX_DEPTH:
        raise _custom("GT014", f"{value} is out of range", hint)
    return value


Depth = Annotated[
    int | Literal["adaptive"],
    PlainValidator(_depth),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_DEPTH}, {"const": "adaptive"}]}),
]


class Schedule(Table):
    """How gradients are grouped, and in what order the groups are sent."""

    order: Literal["fifo", "priority", "random", "tic", "tac", "tac_folded", "caramel", "edf", "optimal", "file"] = key(
        default="fifo", examples=["priority"], core=False
    )
    """Order of the transmission queue. fifo: as gradients become ready; priority: lowest layer first;
    random: a fresh order in every iteration; tic, tac: TicTac's, which of layers is priority; caramel: each bucket in
    its place in the backward or the next forward pass; edf: earliest deadline first, in chunks; optimal: the best of
    what all of these do in a simulation of one channel; file: the user's. docs/models/caramel.md has the rules.
    Of parameter servers with pull = "start" it is the order of pulls: random (the default there; a fresh one in every
    iteration and for every worker), priority, tic, tac, tac_folded, optimal, file (docs/models/servers.md)."""
    fusion_bytes: Fusion = key(default="25MiB", examples=["6.28MB"], core=False)
    """Cap of a bucket of gradients that are sent together; "0B" sends every layer alone. "adaptive": small layers
    together that are computed while the network is busy (Caramel 2020, section 4.2); with order = "optimal", also what
    others send together is tried. The default is that of PyTorch DistributedDataParallel (bucket_cap_mb = 25, counted
    in MiB); with order caramel, edf or optimal it is "adaptive"."""
    first_fusion_bytes: PartSize | None = key(default=None, examples=["1MiB"], core=False)
    """Cap of the first bucket. With it, a bucket is closed by the layer with which it reaches its cap, as in PyTorch
    DDP, which has 1 MiB here. Default: a layer that would pass the cap starts a new bucket, and all caps are
    `fusion`."""
    cycle_ps: Time | None = key(default=None, examples=["5ms"], core=False)
    """With it, a bucket is what is expected to be ready at the end of a cycle of this length, at most `fusion` or one
    layer, as in Horovod, which has 5 ms and 64 MiB; "0ms": whenever the network is free. Default: buckets do not depend
    on times."""
    buckets: list[Annotated[int, Field(ge=1)]] | None = key(default=None, examples=[[28, 23, 49]], core=False)
    """In place of `fusion`, your own buckets: the number of layers in each, from the input side. Together
    they hold all layers of the model, those without parameters included."""
    chunk_bytes: PartSize | None = key(default=None, examples=["1MB"])
    """Largest part of a bucket that is sent without looking at the queue again. Default: a bucket is sent
    whole; with order = "edf", parts of whose time a tenth is fixed cost; with order = "optimal", what is best."""
    credit: int = key(default=1, ge=1, le=1024, examples=[4])
    """Parts that are on the network at one time: those that have been handed to it cannot be overtaken any more."""
    queues: int | None = key(default=None, ge=1, le=1_000_000, examples=[8], core=False)
    """With order = "priority": this many classes of layers, first come first served inside a class.
    Default: each layer has its own."""
    barrier: bool = key(default=True, examples=[False])
    """Whether the next forward pass waits for all transfers; without it each layer waits for its own. With
    order caramel, edf or optimal the default is false."""
    depth: Depth = key(default=1, examples=[1], core=False)
    """Parts into which what is sent at once is cut, each of which goes through the collective by itself, so that one is
    reduced while the next is sent (Caramel 2020, section 4.4). "adaptive": 1 for what is small, up to 8 for what is
    large. The pipe engine has 1. With another engine and order caramel, edf or optimal the default is "adaptive"."""
    file: Name | None = key(default=None, examples=["order.csv"], core=False, short="order_file")
    """With order = "file": one layer name a line, most urgent first, no header, each layer that has
    parameters exactly once."""
    ranking: list[Name] | None = key(default=None, examples=[["fc", "conv1"]], core=False)
    """With order = "file": the content of `file` written here; the resolved scenario carries it so."""
    in_turn: bool | None = key(default=None, examples=[True], core=False)
    """With order = "file": whether a bucket waits for all before it in the list, though the network rests meanwhile.
    Default: false; of what is ready, the first in the list is sent."""
    disorder_ppm: Part | None = key(default=None, examples=[0.005], core=False)
    """Share of the pulls that change places with one that waits behind them on the same channel (pull = "start"):
    TicTac, section 5.1, saw 0.005. Default: 0."""
    overhead_ps: Time = key(default="0us", examples=["20us"])
    """Time for which every transfer holds the transmission queue before its first byte."""
    sync_ps: Time = key(default="0us", examples=["20us"])
    """Time from the end of a transfer on all workers to the earliest start of the next: what a global syncer takes to
    learn that all have finished and to let them go on."""

    @property
    def cap_bytes(self) -> int:
        """Cap of a bucket; 0 where every layer is alone, and where the order decides."""
        return 0 if self.fusion_bytes == "adaptive" else self.fusion_bytes

    @property
    def parts(self) -> int:
        """Parts into which what is sent at once is cut; 1 where their number adapts."""
        return 1 if self.depth == "adaptive" else self.depth


class AdaptiveTable(Table):
    """In which band each worker sends what it sends next. docs/models/adaptive.md."""

    policy: Literal["deadline", "background", "oracle", "all-low", "lower-layers-high", "all-high"] = key(
        default="deadline", examples=["deadline"], core=False
    )
    """deadline: low as long as the predicted end is not behind the end of the slack, with several chunks under way and
    small windows, and else high. background: the same, but always low. all-low and all-high are the priorities "low"
    and 0; lower-layers-high sends the lower half of the layers high (thesis, section 5.5). oracle: one chunk at a
    time, low or high, whichever a run of both shows to be better, with every flow to come. No real worker can know
    that; it is there to be compared with."""
    credit: int | None = key(default=None, ge=1, le=1024, examples=[4])
    """Chunks under way at one time as long as they go low, so that the network is not idle where one of them is held
    up; those that go high go one by one. Default: 4; of deadline with ECN, whose queues are short: 1."""
    window_bytes: PartSize | None = key(default=None, examples=["128kB"])
    """Most bytes that a connection has under way in the low band. Default: what the slowest link carries in 100 us, or
    in two round trips without queues if that is longer; at least 16 kB. With ECN: the transport's."""
    tolerance_ppm: Tolerance | None = key(default=None, examples=[0.02])
    """How much longer than its workers expect in the high band an iteration may take, as a share. Default: 0.02."""
    margin_ppm: Tolerance | None = key(default=None, examples=[0.1])
    """How much longer than measured, as a share, a worker takes all transfers behind the present one to be: the more,
    the more goes high. Default: 0."""
    exchange: bool | None = key(default=None, examples=[False])
    """Whether the syncer, which starts each transfer, starts it high everywhere if one worker wants it high.
    Default: true."""
    price_ppm: Tolerance | None = key(default=None, examples=[1])
    """Of the oracle: by how many seconds an iteration may be longer so that small flows, of up to 100 kB, are one
    second less in the network, all together. 0 sends low only what costs nothing. Default: 1."""


class Adaptive(Table):
    """A band that changes as the job sends."""

    adaptive: AdaptiveTable = key(examples=[{"policy": "deadline"}])
    """How the band is chosen."""


def _priority_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<word>"
    if isinstance(value, (dict, Adaptive)):
        return "<adaptive>"
    return "<band>" if isinstance(value, int) and not isinstance(value, bool) else None


_Word = Annotated[Literal["high", "low"], Tag("<word>")]
_Band = Annotated[int, Field(ge=0, le=7), Tag("<band>")]
_Adaptive = Annotated[Adaptive, Tag("<adaptive>")]
Priority = Annotated[_Word | _Band | _Adaptive, Discriminator(_priority_tag)]


def _job_priority_tag(value: object) -> str | None:
    return "<bands>" if isinstance(value, list) else _priority_tag(value)


_Bands = Annotated[list[Annotated[_Word | _Band, Discriminator(_priority_tag)]], Tag("<bands>")]
JobPriority = Annotated[_Word | _Band | _Bands | _Adaptive, Discriminator(_job_priority_tag)]


def _placement_tag(value: object) -> str | None:
    return "<hosts>" if isinstance(value, list) else "<word>" if isinstance(value, str) else None


Placement = Annotated[
    Annotated[Literal["packed", "spread", "random"], Tag("<word>")] | Annotated[list[str], Tag("<hosts>")],
    Discriminator(_placement_tag),
]


class JobTable(Table):
    """One data-parallel training job."""

    model: Model | None = key(
        default=None, examples=["resnet50", "layers.csv", {"kind": "thesis", "layers": 50, "size": "100MB"}]
    )
    """What is trained: a preset, a layer table (.csv), a model file (.json), a trace of a step or more (Kineto's .json
    and .json.gz, Chakra's .et; a file, a folder or a pattern), or an inline table. Needed. Of a preset that is an op
    graph, too, pull = "start" and compute.order take the graph."""
    workers: int | None = key(default=None, ge=1, examples=[8])
    """Number of workers, each on a host of its own: the lowest-numbered hosts that no other job names.
    This or `hosts` is needed."""
    hosts: list[str] | None = key(default=None, examples=[["h0", "h1", "h3"]])
    """Host of each worker."""
    placement: Placement = key(default="packed", examples=["spread", ["h3", "h1"]])
    """Which rank is on which of the job's hosts. packed: in their order; spread: dealt out over the edge switches;
    random: drawn with the run's seed. With `workers`, spread and random also choose among all hosts that no other job
    has. A list is the same as `hosts`."""
    iterations: int | None = key(default=None, ge=1, examples=[10])
    """Measured iterations. Default: 10, or as many as `run.duration` allows if that is given."""
    task: Literal["train", "inference", "exchange"] | None = key(default=None, examples=["inference"])
    """What an iteration is. train: gradients are computed and summed. inference: pull and forward pass, with parameter
    servers and pull = "start". exchange: the bytes are not gradients and any collective may carry them.
    Default: train."""
    compute: Compute = key(default={}, examples=[{"scale_to": "900ms"}])
    """How long the layers compute."""
    collective: Collective = key(default={}, examples=[{"kind": "ring"}])
    """Algorithm that aggregates gradients."""
    schedule: Schedule = key(default={}, examples=[{"order": "fifo", "fusion": "6.28MB", "barrier": True}])
    """How gradients are grouped and ordered."""
    priority: JobPriority = key(default="high", examples=["high", 2, ["high", "low", "low", "low"]])
    """Band of the job's flows on the network: "high" is band 0, sent first, "low" the last band that the queue has
    (2 of pfifo_fast, n - 1 of n strict bands), and a number is that band. A list is shared out evenly over the layers
    from the input side, and a chunk travels in the band of the layer in which it begins: here the lowest quarter of the
    layers goes high. With one entry for each layer, alike in all layers of a bucket, every bucket has a band of its
    own. { adaptive = { policy = "deadline" } } changes the band as the job sends. No effect on the pipe engine."""
    start_ps: Time = key(default="0s", examples=["0s"])
    """Simulated time at which the job starts."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether each message of the job that follows a pause of its connection is a burst that is announced to the
    switches first; it begins a round trip later. It needs a queue of kind = "pcn". true: with the queue's `announced`;
    a number of packets, a multiple of 5 up to 75: with that threshold. Default: false."""


# ── cluster ───────────────────────────────────────────────────────────────────────────────────────────────


class Link(Table):
    """A link, one direction."""

    rate_bps: Rate = key(default="10Gbps", examples=["10Gbps"])
    """Nominal rate."""
    delay_ps: Time = key(default="10us", examples=["10us"])
    """Propagation delay."""
    efficiency_ppm: Share = key(default=1.0, examples=[0.95])
    """Share of the rate left to gradients after headers and retransmissions."""


class CustomLink(Table):
    """A cable of a custom topology: a link in each direction."""

    a: Name = key(examples=["h0"])
    """One end: a host h0, h1, … or a switch of any other name. A host has one cable."""
    b: Name = key(examples=["s0"])
    """The other end."""
    rate_bps: Rate | None = key(default=None, examples=["25Gbps"])
    """Nominal rate. Default: that of cluster.link."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: that of cluster.link."""


class FabricLink(Table):
    """A link between leaf and spine."""

    rate_bps: Rate | None = key(default=None, examples=["100Gbps"])
    """Nominal rate. Default: that of cluster.link."""
    delay_ps: Time | None = key(default=None, examples=["1us"])
    """Propagation delay. Default: that of cluster.link."""


def _links_tag(value: object) -> str | None:
    return "<cables>" if isinstance(value, list) else "<file>" if isinstance(value, str) else None


Cables = Annotated[
    Annotated[list[CustomLink], Tag("<cables>")] | Annotated[FileName, Tag("<file>")], Discriminator(_links_tag)
]


class Topology(Table):
    """Shape of the network. The pipe engine knows the star only."""

    kind: Literal["star", "leaf_spine", "clos2", "clos3", "custom"] = key(default="star", examples=["star"])
    """Hosts around one switch, leaf-spine, Clos of 2 or 3 layers, or cable by cable."""
    hosts: int | None = key(default=None, ge=1, examples=[8])
    """Number of hosts (star, leaf_spine, custom). Default of a star: as many as the jobs need; of a custom network: up
    to the last one that a cable names."""
    ports: int | None = key(default=None, ge=2, le=1024, examples=[16])
    """Ports of a switch (clos2, clos3)."""
    bisection: Ratio | None = key(default=None, examples=["1/4"])
    """Capacity of an edge switch upwards over that downwards (leaf_spine, clos2, clos3): (k/2) · bisection switches are
    above it. Default: 1, unless `spines` says it."""
    leaves: int | None = key(default=None, ge=1, examples=[4])
    """Number of leaf switches (leaf_spine)."""
    hosts_per_leaf: int | None = key(default=None, ge=1, examples=[8])
    """Hosts of each leaf (leaf_spine). This or `hosts` is needed there."""
    spines: int | None = key(default=None, ge=1, examples=[2])
    """Number of spine switches, each with a link to every leaf (leaf_spine). Default: as `bisection` says."""
    fabric_link: FabricLink | None = key(default=None, examples=[{"rate": "100Gbps"}])
    """Links between leaves and spines (leaf_spine). Default: as `cluster.link`."""
    switches: list[Name] | None = key(default=None, examples=[["s0", "s1"]])
    """Names of the switches (custom). Default: every end of a cable that is no host."""
    links: Cables | None = key(default=None, examples=[[{"a": "h0", "b": "s0"}], "fabric.csv"])
    """Cables (custom): a list, a CSV file with the header a,b[,rate][,delay], rates and delays with their units, or a
    topology file of HPCC. The resolved scenario carries a file as a list."""


class Queue(Table):
    """Queue of every egress port. Read by the packet engine only."""

    kind: Literal["pfifo_fast", "fifo", "strict", "drr", "ecn", "red", "pcn"] = key(
        default="pfifo_fast", examples=["pfifo_fast"]
    )
    """Discipline. pfifo_fast: Linux's three strict bands; fifo: one band; strict: as many as `bands`; drr: bands that
    share the link by `weights`; ecn: one band with a `threshold` for congestion marks; red: one band with random early
    detection; pcn: one band with a `threshold` that announced bursts lower (Kang et al. 2021)."""
    capacity: Buffer = key(default="1000pkt", examples=["1000pkt", "1MB"])
    """Packets or bytes on the wire that wait in a port, all bands together. With `cluster.switch_buffer`, in a host's
    port only."""
    bands: int | None = key(default=None, ge=1, le=8, examples=[3])
    """Number of bands; needed with kind = "strict"."""
    weights: list[Annotated[int, Field(ge=1, le=1000)]] | None = key(default=None, examples=[[4, 2, 1]])
    """With kind = "drr", how many full packets each band sends in a round while it has any, band 0 first; one to eight
    bands. Needed there."""
    threshold_packets: Packets | None = key(default=None, examples=["40pkt"])
    """Queue length, all bands together, from which packets of ECN-capable senders are marked (all kinds but red);
    needed with kind = "ecn" and "pcn". Default: nothing is marked."""
    mark_at: Literal["enqueue", "dequeue"] | None = key(default=None, examples=["enqueue"])
    """When the queue is compared with the threshold. Default: enqueue."""
    min_packets: Packets | None = key(default=None, examples=["5pkt"])
    """Average queue below which RED does nothing; needed with kind = "red"."""
    max_packets: Packets | None = key(default=None, examples=["15pkt"])
    """Average queue from which RED hits every packet; needed with kind = "red"."""
    max_probability_ppm: Share | None = key(default=None, examples=[0.1])
    """Probability with which RED hits a packet just below `max`; it grows from 0 at `min`. Default: 0.1."""
    weight_ppm: Share | None = key(default=None, examples=[0.002])
    """By how much of the difference RED's average moves per packet that arrives. Default: 0.002."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether RED marks packets of ECN-capable senders in place of dropping them. Default: false."""
    announced_packets: Fifth | None = key(default=None, examples=["10pkt"])
    """With kind = "pcn", the threshold of an egress port while a burst is announced to come through it; a multiple of
    5 packets up to 75, and not above `threshold`. Needed there."""
    timeout_ps: Duration | None = key(default=None, examples=["1ms"])
    """With kind = "pcn", how long a sender waits for the answer to its announcement before its burst begins all the
    same. Default: a round trip over the longest route with every queue full, after which none can come."""
    expire_ps: Duration | None = key(default=None, examples=["3ms"])
    """With kind = "pcn", the age at which a switch forgets an announcement whose burst has not come. Default: three
    times `timeout`, and the longest `setup` of announced bursts."""


class SwitchBuffer(Table):
    """Buffer that the ports of a switch share. Read by the packet engine only."""

    capacity: Buffer = key(examples=["4MB"], core=False)
    """Packets or bytes on the wire that wait in all ports of a switch together."""
    alpha_ppm: Alpha = key(default=1.0, examples=[1.0])
    """A port's queue may grow to this many times what is free (Choudhury & Hahne 1998)."""


class Transport(Table):
    """Transport protocol of every flow. Read by the packet engine only."""

    kind: Literal["newreno", "cubic", "dctcp", "ideal", "newreno+ecn", "cubic+ecn"] = key(
        default="newreno", examples=["newreno"], core=False
    )
    """Congestion control. newreno: RFC 5681, 6582 and 6675; cubic: RFC 9438; dctcp: RFC 8257; ideal: the same window
    from the first segment to the last. "newreno+ecn" and "cubic+ecn" are short for `ecn = true`."""
    ecn: bool | None = key(default=None, examples=[True])
    """Whether segments can be marked where others are dropped (RFC 3168). It needs a queue that marks. Default: true
    with kind = "dctcp", else false."""
    gain_ppm: Share | None = key(default=None, examples=[0.0625], core=False)
    """Weight g of a window's share of marks in their average (dctcp). Default: 1/16."""
    hystart: bool | None = key(default=None, examples=[True], core=False)
    """Whether slow start ends as soon as acknowledgements last half a round trip or round trips grow, and not only by
    a mark or a loss (cubic): HyStart of Ha & Rhee (2011), as in Linux; round trips are then measured in microseconds.
    Default: false."""
    byte_counting: bool | None = key(default=None, examples=[True], core=False)
    """Whether slow start grows by all segments that an acknowledgement covers, as in Linux (RFC 3465), and not by one
    (RFC 5681): with delayed acknowledgements it doubles in a round trip, and else it grows by a half (cubic). Default:
    false."""
    segment_bytes: PartSize = key(default="1380B", examples=["1380B"])
    """Payload of a full segment; with 52 bytes of headers it fits into an IPv4 packet of 65535."""
    initial_window_segments: int = key(default=10, alias="initial_cwnd", ge=1, le=10_000, examples=[10])
    """Initial window, in segments. No effect on kind = "ideal"."""
    window_bytes: PartSize | None = key(default=None, examples=["32MiB"])
    """Send and receive buffer: most bytes that a connection has under way. With kind = "ideal" it is the window.
    Default: 32MiB; with kind = "ideal" twice what a route holds, in whole segments."""
    recovery: Literal["sack", "ns3.30"] = key(default="sack", examples=["sack"])
    """Fast recovery. sack: RFC 6675, as ns-3.37 does it. "ns3.30": as ns-3.30.1 did, on which Gao (2020) ran: it also
    repeats segments that are under way already."""
    timers: Literal["derived", "linux"] = key(default="derived", examples=["derived"])
    """Least retransmission timeout, delay of acknowledgements, and timeout before the first sample. derived: from a
    high estimate of the worst round trip, as Gao (2020) has them; linux: 200 ms, 40 ms and 1 s, for links so slow or
    long that the estimate would be seconds."""


class Cluster(Table):
    """What the jobs run on."""

    topology: Topology = key(default={}, examples=[{"kind": "star", "hosts": 8}], core=False)
    """Shape of the network."""
    link: Link = key(default={}, examples=[{"rate": "10Gbps", "delay": "10us"}])
    """Every link of which the topology says nothing else."""
    host_latency_ps: Time = key(default="0s", examples=["5us"])
    """Time that a host's stack takes for a message: added to the delay of every link of a host. The pipe engine counts
    one link per ring step."""
    routing: Literal["ecmp", "dmodk", "spread"] = key(default="ecmp", examples=["ecmp"])
    """Choice among equal routes. ecmp: by a hash of the flow; dmodk: by the destination's number, as in InfiniBand and
    SimGrid's fat trees; spread: by both ends' places. Where there is one way only, nothing."""
    queue: Queue = key(default={}, examples=[{"kind": "pfifo_fast", "capacity": "1000pkt"}], core=False)
    """Queue of every egress port."""
    switch_buffer: SwitchBuffer | None = key(default=None, examples=[{"capacity": "4MB", "alpha": 1}], core=False)
    """Buffer that the ports of a switch share, each switch its own. Default: every port has `queue.capacity`."""
    transport: Transport = key(default={}, examples=[{"kind": "newreno", "segment": "1380B"}], core=False)
    """Transport protocol of every flow."""


# ── neighbours and run ────────────────────────────────────────────────────────────────────────────────────


class CdfPoint(Table):
    """A point of a flow-size distribution; lines between the points are straight."""

    bytes: Size = key(examples=["4kB"])
    """Flow size."""
    cdf: Cumulated = key(examples=[0.15])
    """Share of the flows that are at most this large; 1 at the last point."""


class Arrivals(Table):
    """When flows start: a Poisson process."""

    rate: Frequency = key(examples=["23/s"])
    """Flows per time."""
    per: Literal["host", "cluster"] = key(default="host", examples=["host"])
    """Whether the rate is that of each host or of all together."""


class Burst(Table):
    """Flows arrive in bursts, with silence between them."""

    on_ps: Duration = key(examples=["10ms"])
    """Length of a burst."""
    off_ps: Duration = key(examples=["90ms"])
    """Silence after it."""


class Incast(Table):
    """Many hosts send to one at the same instant, again and again."""

    dst: Name = key(examples=["h0"])
    """Host that receives."""
    senders: int | None = key(default=None, ge=1, le=1_000_000, examples=[7])
    """Number of hosts that send: the lowest-numbered other ones. Default: all other hosts."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload of each flow."""
    every_ps: Duration = key(examples=["100ms"])
    """Time from one incast to the next."""
    start_ps: Time = key(default="0s", examples=["0s"])
    """Time of the first."""


class Bursts(Table):
    """Hosts that send, pause and send again, as training jobs do."""

    src: list[Name] = key(examples=[["h6", "h7"]])
    """Hosts that send, each at its own pace."""
    dst: Name = key(examples=["h0"])
    """Host that receives."""
    bytes: PartSize = key(examples=["3MB"])
    """Payload of each burst."""
    count: int = key(ge=1, le=1_000_000, examples=[6])
    """Bursts of each host."""
    idle_ps: Time = key(examples=["7s"])
    """Pause from the end of a burst to the start of the next."""
    together: bool = key(default=False, examples=[True])
    """Whether the hosts wait for one another, as the workers of a job do: the pause runs from the end of the last of
    their bursts, and the next begin at once."""
    setup_ps: Time = key(default="0s", examples=["20ms"])
    """Time that the application takes before a burst's first byte, after the answer to its announcement if there is
    one; the handshake runs meanwhile."""
    start_ps: Time = key(default="0s", examples=["20s"])
    """Time of the first."""


class ListedFlow(Table):
    """One flow of a list."""

    start_ps: Time = key(examples=["1ms"])
    """When it starts."""
    src: Name = key(examples=["h0"])
    """Host that sends."""
    dst: Name = key(examples=["h1"])
    """Host that receives, another one."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload."""
    band: int | None = key(default=None, ge=0, le=7, examples=[1])
    """Band on the network. Default: that of the neighbour's `priority`."""


class TrafficTable(Table):
    """Flows of a neighbour that is not training; they start before `run.duration`. Not for the pipe engine."""

    sizes: Name | None = key(default=None, examples=["web-search"])
    """Flow-size distribution: a preset (web-search, data-mining, cache-follower) or a CDF file, whose lines are bytes
    and percent, or bytes and share, or that is a CSV with the header bytes,cdf. This, `replay`, `flows`, `incast` or
    `bursts` is needed."""
    cdf: list[CdfPoint] | None = key(default=None, examples=[[{"bytes": "4kB", "cdf": 0}, {"bytes": "1MB", "cdf": 1}]])
    """In place of `sizes`, the distribution written here; the resolved scenario carries a CDF file so."""
    arrivals: Arrivals | None = key(default=None, examples=[{"rate": "23/s", "per": "host"}])
    """When flows start, each between two hosts drawn at random. This or `load` is needed with `sizes`. The first
    neighbour with random arrivals draws exactly as Gao (2020) does with the run's number for seed; every other one from
    a stream of its own name."""
    load_ppm: Share | None = key(default=None, examples=[0.3])
    """In place of `arrivals`, the share of the hosts' nominal link rate that the flows' payload takes on average."""
    burst: Burst | None = key(default=None, examples=[{"on": "10ms", "off": "90ms"}])
    """Flows arrive in bursts only, the first at time 0; the rate or load stays that of the whole time. Default: they
    arrive all the time."""
    replay: FileName | None = key(default=None, examples=["flows.csv"])
    """List of flows, a file with the header start_ns,src,dst,bytes[,band] or a connection matrix of htsim; hosts are
    h0, h1, … or 0, 1, …, lines may be in any order, and what starts at or after `run.duration` is left out. Given by
    --set it takes the place of the sizes and arrivals that the scenario has. The resolved scenario carries up to 100
    flows as `flows`, a longer list as its path and `replay_sha256`."""
    replay_sha256: Name | None = key(default=None, examples=["875275afa1f8d463" * 4])
    """SHA-256 of the file that `replay` names; a file with another one is refused."""
    flows: list[ListedFlow] | None = key(
        default=None, examples=[[{"start": "1ms", "src": "h0", "dst": "h1", "bytes": "1MB"}]]
    )
    """In place of `replay`, the list written here."""
    incast: Incast | None = key(default=None, examples=[{"senders": 7, "dst": "h0", "bytes": "1MB", "every": "100ms"}])
    """Many hosts that send to one at once."""
    bursts: Bursts | None = key(
        default=None, examples=[{"src": ["h6"], "dst": "h0", "bytes": "3MB", "count": 6, "idle": "7s"}]
    )
    """Hosts that send bursts with pauses between them."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether each flow is announced to the switches before its connection is opened, as for a job."""
    priority: Priority = key(default="high", examples=["high"])
    """Band of the flows on the network, as for a job; it does not change."""


class Probe(Table):
    """What is sampled over time. Read by the packet engine only; a run is the same with it and without."""

    every_ps: Duration = key(examples=["100us"])
    """Time from one sample to the next. A table that reaches a million rows is thinned: every second instant is
    forgotten and the step doubles. `summary.json` says what it came to."""
    links: list[str] | None = key(default=None, examples=[["s-h0", "h1"]])
    """Links whose queues are sampled into `queues.csv`: h0 is what host 0 sends, s-h0 what the switch of a star sends
    to it; on other networks links are named from end to end, as leaf0-h3 and leaf0-spine1. Default: all."""
    cwnd: list[str] | None = key(default=None, examples=[["train", "web.17"]], core=False)
    """Jobs and neighbours whose senders' congestion windows are sampled into `cwnd.csv`; "web.17" is flow 17 of `web`
    alone. Default: none."""


class Run(Table):
    """How the run is made."""

    engine: Literal["pipe", "fluid", "packet"] = key(default="pipe", examples=["pipe"])
    """Network engine. pipe: one transmission queue per host, solvable by hand; fluid: max-min fair rates;
    packet: TCP packet by packet."""
    seed: int = key(default=0, ge=0, le=2**63 - 1, examples=[0])
    """Root of all random streams. Equal seeds give equal results."""
    duration_ps: Duration | None = key(default=None, examples=["12s"])
    """Simulated time after which no further iteration is begun and no neighbour's flow starts. Needed with traffic;
    without, the default is no limit."""
    warmup_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Flows of neighbours that start before this do not count."""
    cooldown_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Flows of neighbours that start within this before the last start do not count."""
    timeline_iterations: int = key(default=2, ge=0, le=1000, examples=[2])
    """Measured iterations of each job whose operations are recorded one by one, for pictures."""
    probe: Probe | None = key(default=None, examples=[{"every": "100us"}], core=False)
    """Samples of queues, link use, drops, marks and congestion windows over time. Default: none are taken."""


class ScenarioFile(Table):
    """Training jobs on a cluster. Quantities carry their units; B is byte, b is bit."""

    job: dict[str, JobTable] = key(default={}, examples=[{"train": {"model": "resnet50", "workers": 8}}])
    """Training jobs by name; at least one."""
    cluster: Cluster = key(default={}, examples=[{"link": {"rate": "10Gbps"}}])
    """Hosts, links and switches."""
    traffic: dict[str, TrafficTable] = key(default={}, examples=[{"web": {"sizes": "web-search", "load": 0.3}}])
    """Neighbours' flows by name."""
    run: Run = key(default={}, examples=[{"engine": "pipe", "seed": 0}])
    """Engine, seed and length."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file; every field has a description and examples."""
    schema = ScenarioFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gradtide scenario", **schema}
