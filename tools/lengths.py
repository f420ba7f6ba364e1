"""Lists files and Python functions that are longer than the project allows.

    python tools/lengths.py    exits 1 if there are any

A file of Rust or Python has at most 600 lines, unless its first 18 lines say why it is "longer than 600 lines". A
Python function has at most 80 lines without its docstring, unless the comment "a table" follows its `def`. Parameters
are counted by ruff (PLR0913) and clippy (too_many_arguments).
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES, HEADER_LINES = 600, 80, 18

_REASON = re.compile(rf"longer than {FILE_LINES}\W+lines")
_TABLE = re.compile(r"# a table\b")


def files(root: Path = ROOT) -> list[Path]:
    """Return the Rust and Python files of the repository, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    return [root / name for name in sorted(filter(None, names)) if (root / name).is_file()]


def is_too_long(text: str) -> bool:
    """Whether a file has too many lines and no reason for them."""
    lines = text.splitlines()
    return len(lines) > FILE_LINES and not _REASON.search("\n".join(lines[:HEADER_LINES]))


def long_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and number of lines of each Python function of a file that is too long."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        assert node.end_lineno is not None
        first = node.body[0]
        docstring = ast.get_docstring(node, clean=False)
        count = node.end_lineno - node.lineno + 1 - (0 if docstring is None else len(docstring.split("\n")))
        if count > FUNCTION_LINES and not _TABLE.search("\n".join(lines[node.lineno - 1 : first.lineno])):
            yield node.name, count


def found(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield each file or function that is too long, a function as `FILE: NAME`, with how long it is."""
    for path in files(root):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        if is_too_long(text):
            yield name, f"{len(text.splitlines())} lines, and no reason in its header"
        if path.suffix == ".py":
            for function, count in long_functions(text):
                yield f"{name}: {function}", f"{count} lines"


def main() -> int:
    """Print every file and function that is too long."""
    every = list(found())
    for name, why in every:
        print(f"{name}  {why}")
    return int(bool(every))


if __name__ == "__main__":
    sys.exit(main())
