"""Runs the notebooks of examples/, and reports differences from their stored outputs.

    python tools/notebooks.py [NOTEBOOK]…     # exits with 1 if a text differs
    python tools/notebooks.py --write [NOTEBOOK]…

Pictures and HTML tables are not compared, because they depend on the version of the library that draws them.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def main() -> int:
    """Run the requested notebooks."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    options.add_argument("--write", action="store_true", help="keep what they print now")
    given = options.parse_args()
    found = 0
    for path in given.notebooks or sorted(EXAMPLES.glob("*.ipynb")):
        kept = nbformat.read(path, as_version=4)
        ran = run(nbformat.read(path, as_version=4))
        if given.write:
            nbformat.write(ran, path)
        lines = list(difflib.unified_diff(list(texts(kept)), list(texts(ran)), f"{path.name}, kept", path.name, "", ""))
        found += bool(lines) and not given.write
        print("\n".join(lines) or f"{path.name}: as before")
    return int(found > 0)


def run(notebook: Any) -> Any:
    """Run all cells in a kernel of this Python, with the folder of the examples as the current directory."""
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", record_timing=False, resources={"metadata": {"path": EXAMPLES}}
    )
    client.execute()
    return notebook


def texts(notebook: Any) -> Iterator[str]:
    """Yield the lines of the cells' text outputs."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            # The text form of a picture contains its size.
            shown = "" if "image/png" in data else data.get("text/plain", output.get("text", ""))
            yield from shown.splitlines()


if __name__ == "__main__":
    sys.exit(main())
