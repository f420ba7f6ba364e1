"""Release events of a plan: the events of training before which a ready bucket is not sent.

A release names a pass and a layer. `backward`: the backward pass has computed the layer's gradient; `forward`: the next
forward pass calls the layer. Both are offsets in the compute time of an iteration without waiting.
"""

from bisect import bisect_right
from collections.abc import Sequence

from gradtide.layers import Layer

Release = tuple[str, str]
"""Pass, `backward` or `forward`, and layer."""


def parse_release(text: str) -> Release | None:
    """Parse the text form of a release; `None` for an empty text."""
    where, _, layer = text.partition(" ")
    return (where, layer) if text else None


class Releases:
    """Offsets of the events of an iteration, picoseconds.

    Attributes:
        compute_ps: all compute time of an iteration.
        ready_ps: when each layer's gradient is ready.
        called_ps: when each layer is called in the forward pass, and reads its parameters.
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
        # Events are only at layers with parameters, because the names of other layers need not be modules.
        owners = [index for index, row in enumerate(layers) if row.parameter_bytes]
        backward = [(self.ready_ps[index], "backward", index) for index in reversed(owners)]
        self._events = backward + [(now + self.called_ps[index], "forward", index) for index in owners]

    def opens_ps(self, release: Release | None) -> int:
        """Return the release time of a bucket; values beyond an iteration's compute time are in the next iteration."""
        if release is None:
            return 0
        where, layer = release
        place = self._places[layer]
        return self.ready_ps[place] if where == "backward" else self.compute_ps + self.called_ps[place]

    def before(self, offset_ps: int, members: Sequence[int]) -> Release | None:
        """Return the last event up to an offset; `None` if a layer in `members` is not ready before that event."""
        place = bisect_right(self._events, offset_ps, key=lambda event: event[0]) - 1
        if place < 0 or self._events[place][0] <= max(self.ready_ps[member] for member in members):
            return None
        _, where, index = self._events[place]
        return where, self._names[index]
