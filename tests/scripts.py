"""Scripts outside the package, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def load(path: str, name: str | None = None) -> ModuleType:
    """Return the script at a path from the root of the repository as a module.

    It is registered, because dataclasses look up their module: as `name`, by default that of the file.
    """
    name = name or Path(path).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
