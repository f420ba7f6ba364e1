"""Parameters whose update is put off: whoever reads or writes one before that has it updated first.

While the update is due, a parameter has a class of its own, whose `__torch_function__` sees every use: by an op, as
`.data`, in a copy. Names of what does not touch the numbers are in `NO_NUMBERS`. Memory that something else holds too
(a `state_dict` that is kept, a `.data`, a numpy array) can be read unseen: `is_held` tells, and it is not put off then.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gradtide.errors import TrainingError

NO_NUMBERS = frozenset(
    (
        *("grad", "grad_fn", "requires_grad", "requires_grad_", "retains_grad", "is_leaf", "_version"),
        *("shape", "size", "dim", "ndim", "ndimension", "stride", "storage_offset", "is_contiguous", "__len__"),
        *("numel", "nelement", "element_size", "itemsize", "nbytes", "layout", "names"),
        *("dtype", "is_floating_point", "is_complex", "is_quantized", "is_sparse", "is_nested", "is_inference"),
        *("device", "get_device", "is_cpu", "is_cuda", "is_meta", "is_shared"),
        *("register_hook", "register_post_accumulate_grad_hook", "_backward_hooks", "_post_accumulate_grad_hooks"),
    )
)
"""What can be asked of a parameter, or done to it, without its numbers."""


class Deferral:
    """Gives parameters their class while their update is due; `update` is called with one that somebody touches."""

    def __init__(self, update: "Callable[[torch.nn.Parameter], None]") -> None:
        self._update = update
        self._plain: dict[int, type] = {}  # the class of each parameter that is put off
        self._classes: dict[type, type] = {}

    def put_off(self, parameter: "torch.nn.Parameter") -> None:
        """Watch a parameter."""
        plain = type(parameter)
        self._plain[id(parameter)] = plain
        if plain not in self._classes:
            self._classes[plain] = _watched(plain, self)
        parameter.__class__ = self._classes[plain]

    def end(self, parameter: "torch.nn.Parameter") -> bool:
        """Watch a parameter no more; whether it was."""
        plain = self._plain.pop(id(parameter), None)
        if plain is not None:
            parameter.__class__ = plain
        return plain is not None

    def close(self) -> None:
        """Forget whose parameters they were: the classes refer to themselves, and live until a garbage collection."""
        self._classes.clear()
        self._update = _closed

    def touch(self, values: Any) -> None:
        """Update those of some values that are put off; refuse a use in which none can be found."""
        found = [value for value in tree_leaves(values) if id(value) in self._plain]
        for parameter in found:
            if id(parameter) in self._plain:  # not updated with another one
                self._update(parameter)
        if not found or any(id(parameter) in self._plain for parameter in found):
            raise TrainingError("a weight was used in a way that gradtide cannot see; call flush() of the model before")


def _closed(parameter: "torch.nn.Parameter") -> None:
    raise AssertionError("no parameter is put off after close")


def _watched(plain: type, deferral: Deferral) -> type:
    """Return a class like that of a parameter, whose objects are updated when they are touched."""

    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if name in ("__get__", "__set__", "__delete__"):
            name = func.__self__.__name__
        if name in NO_NUMBERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        deferral.touch((args, kwargs))
        return func(*args, **(kwargs or {}))

    def deep_copy(self: Any, memo: Any) -> Any:
        deferral.touch(self)
        return self.__deepcopy__(memo)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        deferral.touch(self)
        return self.__reduce_ex__(protocol)

    methods = {
        "__torch_function__": classmethod(torch_function),
        "__deepcopy__": deep_copy,
        "__reduce_ex__": reduce_ex,
    }
    return type(plain)(plain.__name__, (plain,), methods)


def can_defer(parameter: "torch.nn.Parameter") -> bool:
    """Whether uses of a parameter can be seen: no subclass with functions of its own, no other process."""
    own = type(parameter).__torch_function__
    return own == torch._C._disabled_torch_function_impl and not parameter.is_shared()


def is_held(tensor: "torch.Tensor") -> bool:
    """Whether another tensor or array has the same memory."""
    return _holders(tensor) > _ALONE


def _holders(tensor: "torch.Tensor") -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[no-any-return]


_ALONE = _holders(torch.empty(1))
