"""Tries three common changes on a copy of the sources, and counts the places that each changes.

    python tools/trial_changes.py [NAME…]  key, congestion, collective; exits 1 if one does not compile

    key         a key of a job with a use in the core: 3 edits, of the key, of the core's field and of the code
    congestion  a congestion control with a parameter: 1 new file, 1 line, and its parameter's key
    collective  a collective algorithm: 1 new file and 1 line

Files that `tools/generate.py` makes do not count. The changes are below and in `tools/trials`; they are also the
examples of CONTRIBUTING.md. If the code around a change has moved, its anchor is missing, and this script fails.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("crates", "fuzz", "Cargo.toml", "Cargo.lock")
KEYS = "python/gradtide/scenario/keys"


@dataclass(frozen=True)
class Edit:
    """Lines that are inserted before a piece of code, or that replace it.

    Attributes:
        file: the file, from the root.
        anchor: code that occurs once in it.
        lines: what stands before the anchor afterwards; with `replaces`, in its place.
    """

    file: str
    anchor: str
    lines: str
    replaces: bool = False

    def apply(self, root: Path) -> None:
        """Apply the edit in a copy of the sources."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.anchor) != 1:
            raise ValueError(f"{self.file} has {text.count(self.anchor)} places of {self.anchor!r}; one was expected")
        path.write_text(
            text.replace(self.anchor, self.lines if self.replaces else self.lines + self.anchor), encoding="utf-8"
        )


@dataclass(frozen=True)
class Trial:
    """A change: new files by their path in the sources, each a file of `tools/trials`, and edits."""

    what: str
    edits: tuple[Edit, ...]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Number and kind of the edits of the change, in a few words."""
        lines = sum(edit.lines.strip("\n").count("\n") + 1 for edit in self.edits)
        return f"{len(self.files)} new files, {len(self.edits)} edits of {lines} lines"


TRIALS = {
    "key": Trial(
        "a key of a job: time that a slow worker takes longer on top of its factor",
        (
            Edit(
                f"{KEYS}/job.py",
                "    probability_ppm: Share = key(default=1.0, examples=[0.1])\n",
                "    surplus_ppm: Share = key(default=0.0, examples=[0.1])\n"
                '    """Share of its compute times by which they grow beyond the factor."""\n',
            ),
            Edit(
                "crates/train/src/spec.rs",
                "    pub factor_ppm: u64,\n",
                "    pub factor_ppm: u64,\n    /// Share beyond the factor, in millionths.\n    #[serde(default)]\n"
                "    pub surplus_ppm: u64,\n",
                replaces=True,
            ),
            Edit(
                "crates/train/src/jitter.rs",
                "if is_slow && is_meant { self.spec.factor_ppm }",
                "if is_slow && is_meant { self.spec.factor_ppm + self.spec.surplus_ppm }",
                replaces=True,
            ),
        ),
    ),
    "congestion": Trial(
        "a congestion control with a parameter: AIMD with a factor of its own",
        (
            Edit("crates/net/src/packet/tcp/congestion/mod.rs", "    ideal::Ideal,\n", "    aimd::Aimd,\n"),
            Edit(
                f"{KEYS}/cluster.py",
                '    segment_bytes: PartSize = key(default="1380B")\n',
                "    factor_ppm: Share | None = key(default=None, examples=[0.5], core=False)\n"
                '    """Share of the window that a reduction leaves (aimd). Default: 0.5."""\n',
            ),
        ),
        {"crates/net/src/packet/tcp/congestion/aimd.rs": "aimd.rs"},
    ),
    "collective": Trial(
        "a collective algorithm: every rank sends to rank 0, which sends the sum back",
        (
            Edit(
                "crates/train/src/collective/algorithms/mod.rs",
                '    "ps" ps::ParameterServer,\n',
                '    "star" star::Star,\n',
            ),
        ),
        {"crates/train/src/collective/algorithms/star.rs": "star.rs"},
    ),
}


def compiles(trials: Iterable[Trial]) -> bool:
    """Apply changes together to a copy of the sources, and compile it."""
    with TemporaryDirectory(prefix="gradtide-trial-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("target", "corpus"))
            else:
                shutil.copy(source, root / name)
        shutil.copytree(ROOT / KEYS, root / KEYS, ignore=shutil.ignore_patterns("__pycache__"))
        for trial in trials:
            for place, name in trial.files.items():
                shutil.copy(ROOT / "tools/trials" / name, root / place)
            for edit in trial.edits:
                edit.apply(root)
        for path in root.joinpath(KEYS).glob("*.py"):
            compile(path.read_text(encoding="utf-8"), path.name, "exec")
        # The copy shares compiled dependencies with the sources, because they are the same.
        target = {"CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))}
        command = ["cargo", "check", "--quiet", "-p", "gradtide-train", "--lib"]
        return subprocess.run(command, cwd=root, env={**os.environ, **target}).returncode == 0


def main() -> int:
    """Try all changes together; if they do not compile, try each alone."""
    names = sys.argv[1:] or list(TRIALS)
    works = compiles(TRIALS[name] for name in names)
    failed = [] if works else [name for name in names if not compiles([TRIALS[name]])]
    for name in names:
        fault = ": DOES NOT COMPILE" if name in failed else ""
        print(f"{name:<11} {TRIALS[name].summary}: {TRIALS[name].what}{fault}")
    return int(not works)


if __name__ == "__main__":
    sys.exit(main())
