"""Lists the circles of files in the Rust crates and the Python package: files that import one another, also indirectly.

    python tools/circles.py [FOLDER…]  all circles, or those within these folders; exits 1 if there is one

In Rust an import is a `use` of an item that another file of the same crate defines. A name that a module only
re-exports counts as imported from the file that defines it, `mod` and `pub use` do not count, and neither do tests. In
Python an import inside a function counts like any other one, and one for type checkers alone does not. A module of a
package counts as imported from its own file, a name of the package from `__init__.py`; the lazy names of `gradtide`
itself count, too.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Module = tuple[str, ...]

_USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*")


def paths_of(tree: str) -> Iterator[list[str]]:
    """Yield the paths of `a::{b, c::{d, e}}`, each as its parts; a path with `as` has its original name."""
    head, brace, rest = tree.partition("{")
    if not brace:
        yield [part.split(" as ")[0].strip() for part in tree.split("::")]
        return
    prefix = [part.strip() for part in head.split("::") if part.strip()]
    depth, part = 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if part.strip():
                yield from ([*prefix, *path] for path in paths_of(part.strip()))
            part = ""
        else:
            part += char


class Crate:
    """The files of a crate by module, and the imports of each."""

    def __init__(self, source: Path) -> None:
        """Read every file under the folder `src` of a crate."""
        self.files: dict[Module, Path] = {}
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            self.files[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = path
        self.exports: dict[Module, dict[str, tuple[Module, list[str]]]] = {}
        self.uses: dict[Module, list[list[str]]] = {}
        for module, path in self.files.items():
            code = _TESTS.sub("", _COMMENT.sub("", path.read_text(encoding="utf-8")))
            self.exports[module], self.uses[module] = {}, []
            for public, tree in _USE.findall(code):
                for parts in paths_of(tree):
                    if public:
                        self.exports[module][parts[-1]] = (module, parts)
                    else:
                        self.uses[module].append(parts)

    def definer(self, module: Module, parts: list[str], depth: int = 8) -> Module | None:
        """Return the module that defines what a path in a file of `module` names; None if another crate does."""
        at, rest = module, list(parts)
        if rest[0] == "crate":
            at, rest = (), rest[1:]
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                at = at[:-1] if rest[0] == "super" else at
                rest = rest[1:]
        elif (*module, rest[0]) not in self.files:
            return None
        while rest and (*at, rest[0]) in self.files:
            at, rest = (*at, rest[0]), rest[1:]
        if rest and depth and (export := self.exports.get(at, {}).get(rest[0])):
            return self.definer(*export, depth - 1) or at
        return at

    def imports(self) -> dict[Path, set[Path]]:
        """Return the files that each file imports."""
        found: dict[Path, set[Path]] = {}
        for module, path in self.files.items():
            definers = (self.definer(module, parts) for parts in self.uses[module])
            found[path] = {self.files[one] for one in definers if one in self.files} - {path}
        return found


class Package:
    """The files of a Python package by module, and the imports of each."""

    def __init__(self, source: Path) -> None:
        """Read every file under the folder of a package."""
        self.root = source.name
        self.files: dict[str, Path] = {}
        self.compiled = {f"{self.root}.{path.stem}" for path in source.glob("*.pyi")}
        for path in sorted(source.rglob("*.py")):
            parts = (self.root, *path.relative_to(source).with_suffix("").parts)
            self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def imports(self) -> dict[Path, set[Path]]:
        """Return the files that each file imports."""
        found: dict[Path, set[Path]] = {}
        for module, path in self.files.items():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            names = [*self._imported(tree, package), *self._lazy(tree, module)]
            found[path] = {self.files[one] for one in names if one in self.files} - {path}
        return found

    def _imported(self, node: ast.AST, package: str) -> Iterator[str]:
        """Yield the modules that a syntax tree imports, outside of `if TYPE_CHECKING`."""
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                yield from self._imported(child, package)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in self.files or name in self.compiled else base
        for child in ast.iter_child_nodes(node):
            yield from self._imported(child, package)

    def _lazy(self, tree: ast.Module, module: str) -> Iterator[str]:
        """Yield the modules of `_NAMES`, which the root package imports when a name is first used."""
        for node in tree.body if module == self.root else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_NAMES":
                yield from (f"{self.root}.{name}" for name in ast.literal_eval(node.value))


def circles(imports: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the sets of files that reach each other, the largest first."""
    reach = {path: set(others) for path, others in imports.items()}
    grown = True
    while grown:
        grown = False
        for others in reach.values():
            more = set().union(*(reach.get(other, set()) for other in others)) - others
            others |= more
            grown |= bool(more)
    found = {frozenset(o for o in others if path in reach.get(o, ())) for path, others in reach.items()}
    return sorted((sorted(one) for one in found if len(one) > 1), key=lambda one: (-len(one), one))


def main() -> int:
    """List the circles of the crates and the package, or of the named folders."""
    within = [Path(folder).resolve() for folder in sys.argv[1:]]
    is_found = False
    sources = [Crate(source) for source in sorted(ROOT.glob("crates/*/src"))]
    for one in (*sources, Package(ROOT / "python/gradtide")):
        imports = one.imports()
        if within:
            imports = {
                path: others for path, others in imports.items() if any(path.is_relative_to(one) for one in within)
            }
        for circle in circles(imports):
            is_found = True
            print(f"{len(circle)}: " + " ".join(str(path.relative_to(ROOT)) for path in circle))
            for path in circle:
                print(f"    {path.name} -> " + " ".join(sorted(o.name for o in imports[path] if o in circle)))
    if not is_found:
        print("no circle of files")
    return int(is_found)


if __name__ == "__main__":
    sys.exit(main())
