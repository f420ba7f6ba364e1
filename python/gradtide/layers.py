"""The layer table to which every model is converted before it is simulated: one row per layer, input side first."""

from typing import NamedTuple


class Layer(NamedTuple):
    """One layer of a model, for one worker and one mini-batch.

    Attributes:
        name: name shown to users.
        forward_ps: forward time, picoseconds.
        backward_ps: backward time, picoseconds.
        parameter_bytes: bytes of the layer's gradient; 0 if the layer has no gradient to send.
        update_ps: time to apply the aggregated gradient, picoseconds.
        is_host: whether the row is host time, in which the device is idle, instead of a layer of the model.
    """

    name: str
    forward_ps: int
    backward_ps: int
    parameter_bytes: int
    update_ps: int = 0
    is_host: bool = False
