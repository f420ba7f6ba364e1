"""The tensor that `.grad` holds while a gradient is being summed: it cannot be read.

Code that reads its numbers (clipping, a GradScaler, a print, a second backward pass) gets an error with the remedy.
Otherwise it would read a local gradient and take it for the sum of all ranks.
"""

from typing import Any

import torch

from gradtide.errors import TrainingError


class InFlight(torch.Tensor):  # type: ignore[misc]
    """A gradient that is being summed: it has shape, dtype and device, but no numbers."""

    __slots__ = ("name",)

    @staticmethod
    def __new__(cls, parameter: "torch.Tensor", name: str) -> "InFlight":
        """Stand for the gradient of a parameter."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, parameter.size(), strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        self.name = name
        return self  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every op."""
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise TrainingError(
            f"the gradient of {_name_in(args)} is on its way and cannot be read ({func}): at level crossiter gradients "
            "are summed while the next forward pass runs. Clipping by norm, GradScaler, accumulation over several "
            "backward passes and code that reads .grad need level priority: wrap(..., level='priority')"
        )

    def __repr__(self) -> str:
        return f"InFlight({self.name!r})"


def _name_in(args: Any) -> str:
    for arg in args:
        if isinstance(arg, InFlight):
            return repr(arg.name)
        if isinstance(arg, (list, tuple)):
            for one in arg:
                if isinstance(one, InFlight):
                    return repr(one.name)
    return "a parameter"
