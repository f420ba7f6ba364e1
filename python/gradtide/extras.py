"""Commands that install optional packages."""

import importlib.metadata
import re
import shlex
import shutil
import sys
from pathlib import Path


def how_to_install(package: str) -> str:
    """Return the command that installs an optional package, such as `pip install 'ray>=2.30'`.

    It names the package instead of an extra of gradtide, which is correct however gradtide was installed: from the
    repository, a wheel or an index.
    """
    wanted = next((one for one in _requirements() if re.split(r"[^\w-]", one)[0] == package), package)
    return f"{_pip()} install {shlex.quote(wanted)}"


def _requirements() -> list[str]:
    """Return the requirements of this copy without their conditions; none if it was not installed."""
    try:
        found = importlib.metadata.requires("gradtide") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [one.partition(";")[0].strip() for one in found]


def _pip() -> str:
    """Return the pip of this interpreter: outside of its virtual environment, `pip` belongs to another one."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
