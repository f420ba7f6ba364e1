"""Release events of a plan. A bucket is not sent before its release event, even if its gradients are ready.

A release event is a pass and a layer: the backward pass has computed the layer's gradient (`backward`), or the next
forward pass calls the layer (`forward`). Times of events assume that compute never waits for the network.
"""

from bisect import bisect_right
from collections.abc import Sequence

from gradtide.layers import Layer

Release = tuple[str, str]
"""Pass (`backward` or `forward`) and name of the layer."""


def parse_release(text: str) -> Release | None:
    """Parse a release event as in `schedule.releases`, "PASS LAYER"; return `None` for an empty text."""
    where, _, layer = text.partition(" ")
    return (where, layer) if text else None


class Releases:
    """Times of all events of an iteration, in picoseconds of compute time since the start of the iteration.

    Attributes:
        compute_ps: compute time of an iteration.
        ready_ps: for each layer, the time at which its gradient is ready.
        called_ps: for each layer, the time at which the forward pass calls it, and its parameters are read.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._names = [row.name for row in layers]
        self.called_ps: list[int] = []
        now = 0
        for row in layers:
            self.called_ps.append(now)
            now += row.update_ps + row.forward_ps
        self.ready_ps = [0] * len(layers)
        for index in reversed(range(len(layers))):
            now += layers[index].backward_ps
            self.ready_ps[index] = now
        self.compute_ps = now
        self._places = {name: index for index, name in enumerate(self._names)}
        # Only layers with parameters are used as events, because other layers need not be modules of the framework.
        owners = [index for index, row in enumerate(layers) if row.parameter_bytes]
        backward = [(self.ready_ps[index], "backward", index) for index in reversed(owners)]
        self._events = backward + [(now + self.called_ps[index], "forward", index) for index in owners]

    def opens_ps(self, release: Release | None) -> int:
        """Return the time of a release event, 0 without one; a time above `compute_ps` is in the next iteration."""
        if release is None:
            return 0
        where, layer = release
        place = self._places[layer]
        return self.ready_ps[place] if where == "backward" else self.compute_ps + self.called_ps[place]

    def before(self, offset_ps: int, members: Sequence[int]) -> Release | None:
        """Return the last event until `offset_ps`; `None` if it is not after all gradients of `members` are ready."""
        place = bisect_right(self._events, offset_ps, key=lambda event: event[0]) - 1
        if place < 0 or self._events[place][0] <= max(self.ready_ps[member] for member in members):
            return None
        _, where, index = self._events[place]
        return where, self._names[index]
