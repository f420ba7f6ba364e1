"""Deferred parameter updates: the first read or write of a parameter applies its pending update.

While an update is pending, the parameter has a special class whose `__torch_function__` intercepts every use (an op,
`.data`, a copy). Uses that do not access the values are listed in `NO_NUMBERS`; they do not trigger the update. If
another object shares the parameter's memory (a `state_dict` that was kept, a `.data`, a numpy array), reads through
that object cannot be intercepted, so the update of such a parameter (`is_held`) is not deferred.
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
"""Attributes and functions of a parameter that do not access its values."""


class Deferral:
    """Changes the class of parameters with a pending update, so that any access to such a parameter calls `update`."""

    def __init__(self, update: "Callable[[torch.nn.Parameter], None]") -> None:
        self._update = update
        self._plain: dict[int, type] = {}  # original class of each deferred parameter
        self._classes: dict[type, type] = {}

    def put_off(self, parameter: "torch.nn.Parameter") -> None:
        """Start intercepting uses of a parameter."""
        plain = type(parameter)
        self._plain[id(parameter)] = plain
        if plain not in self._classes:
            self._classes[plain] = _watched(plain, self)
        parameter.__class__ = self._classes[plain]

    def end(self, parameter: "torch.nn.Parameter") -> bool:
        """Stop intercepting uses of a parameter; return whether its update was deferred."""
        plain = self._plain.pop(id(parameter), None)
        if plain is not None:
            parameter.__class__ = plain
        return plain is not None

    def close(self) -> None:
        """Drop all references to parameters. The subclasses are in reference cycles, which would keep them alive."""
        self._classes.clear()
        self._update = _closed

    def touch(self, values: Any) -> None:
        """Update the deferred parameters in nested values; raise `TrainingError` if none is found or left deferred."""
        found = [value for value in tree_leaves(values) if id(value) in self._plain]
        for parameter in found:
            if id(parameter) in self._plain:  # not updated with its bucket
                self._update(parameter)
        if not found or any(id(parameter) in self._plain for parameter in found):
            raise TrainingError("a weight was used in a way that gradtide cannot see; call flush() of the model before")


def _closed(parameter: "torch.nn.Parameter") -> None:
    raise AssertionError("no parameter is put off after close")


def _watched(plain: type, deferral: Deferral) -> type:
    """Return a subclass of a parameter's class that applies the pending update on access."""

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
    """Return whether uses of a parameter can be intercepted: no own `__torch_function__`, no inter-process memory."""
    own = type(parameter).__torch_function__
    return own == torch._C._disabled_torch_function_impl and not parameter.is_shared()


def is_held(tensor: "torch.Tensor") -> bool:
    """Return whether another tensor or array shares the tensor's memory."""
    return _holders(tensor) > _ALONE


def _holders(tensor: "torch.Tensor") -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[no-any-return]


_ALONE = _holders(torch.empty(1))
