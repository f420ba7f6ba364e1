"""Builds the model that a command line names, and its inputs.

`MODULE:FACTORY` names an importable module or a .py file, and a callable in it without required arguments; a model
class of transformers is built with its default configuration. `[NAME=]SHAPE[:DTYPE]` describes an input, e.g.
32x3x224x224 or input_ids=8x128:int64.
"""

import math
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from gradtide.errors import ProfileError, hinted, nearest

if TYPE_CHECKING:
    import torch

_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?")
_MAX_ELEMENTS = 2**40


class InputSpec(NamedTuple):
    """An input of the model's forward: its keyword or `None`, its shape (mini-batch first), and its torch dtype."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        label = f"{self.name}=" if self.name else ""
        return f"{label}{'x'.join(map(str, self.shape))}:{self.dtype}"


def parse_input(text: str) -> InputSpec:
    """Parse `[NAME=]SHAPE[:DTYPE]`. Default dtype: float32.

    Raises:
        ProfileError: if the syntax is wrong.

    Example:
        >>> str(parse_input("input_ids=8x128:int64")), parse_input("32x3x224x224").shape
        ('input_ids=8x128:int64', (32, 3, 224, 224))
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise ProfileError(f"--input {text!r}: write [NAME=]SHAPE[:DTYPE], as in 32x3x224x224 or input_ids=8x128:int64")
    shape = tuple(int(size) for size in match["shape"].split("x"))
    elements = math.prod(shape)
    if not 0 < elements <= _MAX_ELEMENTS:
        raise ProfileError(f"--input {text!r}: it would have {elements:,} elements; sizes start at 1")
    return InputSpec(match["name"], shape, match["dtype"] or "float32")


def make_inputs(specs: Sequence[InputSpec], device: str) -> tuple[tuple["torch.Tensor", ...], dict[str, Any]]:
    """Return positional and keyword inputs of a model's forward. On the device `meta` they take no memory.

    Floats are drawn from N(0, 1). Integers are 0 or 1, which are valid tokens in any vocabulary.
    """
    import torch

    args: list[torch.Tensor] = []
    kwargs: dict[str, Any] = {}
    for spec in specs:
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ProfileError(f"--input {spec}: torch has no dtype {spec.dtype!r}; write float32, bfloat16, int64, …")
        if dtype.is_floating_point or dtype.is_complex:
            tensor = torch.randn(spec.shape, device=device).to(dtype)
        else:
            tensor = torch.randint(0, 2, spec.shape, device=device).to(dtype)
        if spec.name is None:
            if kwargs:
                raise ProfileError(f"--input {spec}: inputs without a name come before inputs with one")
            args.append(tensor)
        elif spec.name in kwargs:
            raise ProfileError(f"--input {spec}: the input {spec.name!r} is given twice")
        else:
            kwargs[spec.name] = tensor
    return tuple(args), kwargs


def make_optimizer(name: str, model: "torch.nn.Module") -> "torch.optim.Optimizer":
    """Return an optimizer of torch.optim with default settings; `name` is its class, case-insensitively.

    Raises:
        ProfileError: if torch.optim has no such optimizer, or it does not take the model's parameters.
    """
    import torch

    optimizers = {
        known: kind
        for known, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    make: Callable[..., torch.optim.Optimizer] | None = next(
        (kind for known, kind in optimizers.items() if known.casefold() == name.casefold()), None
    )
    if make is None:
        hint = hinted(name, optimizers, f"there are {', '.join(sorted(optimizers))}")
        raise ProfileError(f"--optimizer {name!r}: torch.optim has no such optimizer; {hint}")
    try:
        return make(model.parameters())
    except Exception as error:
        raise ProfileError(f"--optimizer {name}: {words_of(error)}") from error


def build(
    target: str, *, on_meta: bool, path: Path | None = None, say: Callable[[str], object] = lambda text: None
) -> "torch.nn.Module":
    """Import `MODULE:FACTORY` and call it, which executes user code. `path` is searched first for modules.

    With `on_meta`, weights are on the meta device, i.e. not allocated; if the factory needs their values, `say` is
    called with a message, and the factory again without the meta device. Failures raise a `ProfileError`, whose cause
    is the exception of the user's code.
    """
    import torch

    if path is not None:
        if not path.is_dir():
            raise ProfileError(f"--python-path {path}: there is no such directory")
        sys.path.insert(0, str(path.resolve()))
    factory = _find(target)
    config: Any = getattr(factory, "config_class", None)
    try:
        with torch.device("meta") if on_meta else nullcontext():
            model = factory() if config is None else factory(config())
    except (Exception, SystemExit) as error:
        if not (on_meta and _needs_values(error)):
            raise ProfileError(f"{target}: the factory raises {words_of(error)}") from error
        say(f"{target} cannot be built without values, so its weights are allocated: {words_of(error)}")
        return build(target, on_meta=False)
    if not isinstance(model, torch.nn.Module):
        raise ProfileError(f"{target}: the factory returns {type(model).__name__}, not a torch.nn.Module")
    return model


def _find(target: str) -> Callable[..., Any]:
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name:
        raise ProfileError(f"{target!r}: write MODULE:FACTORY, as in torchvision.models:resnet50 or model.py:make")
    found: Any
    try:
        if module.endswith(".py"):
            found = SimpleNamespace(**runpy.run_path(module))
        else:
            found = pkgutil.resolve_name(module + ":")
    except (Exception, SystemExit) as error:
        raise ProfileError(f"{module} cannot be imported: {words_of(error)}{_where_to_look(module, error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = nearest(part, dir(found))
            raise ProfileError(f"{module} has no {name!r}" + (f"; did you mean {near!r}?" if near else ""))
        found = getattr(found, part)
    if not callable(found):
        raise ProfileError(f"{target} is a {type(found).__name__}, not a factory: name a callable that returns a model")
    return found  # type: ignore[no-any-return]


def _where_to_look(module: str, error: BaseException) -> str:
    """Return a hint about `--python-path .` if the module was not found; empty for other errors."""
    name = module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != name:
        return ""
    found = " has it, but" if Path(f"{name}.py").is_file() or Path(name).is_dir() else ""
    return f"; the current directory{found} is not searched: add --python-path ."


def _needs_values(error: BaseException) -> bool:
    return isinstance(error, (NotImplementedError, RuntimeError)) and "meta" in str(error).lower()


def words_of(error: BaseException) -> str:
    """Return type and first line of an exception, truncated to 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
