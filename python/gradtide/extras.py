"""Commands that install optional packages."""

import importlib.metadata
import re
import shlex
import shutil
import sys
from pathlib import Path


def how_to_install(package: str) -> str:
    """Return the command that installs an optional package, such as `pip install 'ray>=2.30'`.

    The command names the package instead of an extra of gradtide, because extras depend on how gradtide was installed:
    from the repository, a wheel or an index.
    """
    wanted = next((one for one in _requirements() if re.split(r"[^\w-]", one)[0] == package), package)
    return f"{_pip()} install {shlex.quote(wanted)}"


def _requirements() -> list[str]:
    """Return the requirements of the installed gradtide without environment markers; none if it is not installed."""
    try:
        found = importlib.metadata.requires("gradtide") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [one.partition(";")[0].strip() for one in found]


def _pip() -> str:
    """Return the command of this interpreter's pip. The `pip` on the PATH may belong to another interpreter."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
