"""Lets every change of the file system in a save go wrong, one after the other, over an older result.

A change fails, fails as on a disk that is full from then on, is interrupted by Ctrl-C, or kills the process. Then the
old or the new result is there, whole; and a save again gives the new one and leaves nothing beside it.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import faults
import gradtide as gt
from attack import folders
from attack.inputs import Result
from attack.readers import ROOT

HOW = {"fails": faults.fails, "full": faults.full, "interrupts": faults.interrupts, "kills": faults.kills}
MODEL = str(ROOT / "scenarios/twelve-layers.csv")

Save = Callable[[Path], object]


def _scenario(iterations: int) -> gt.Scenario:
    return gt.Scenario.from_dict({"job": {"a": {"model": MODEL, "workers": 2, "iterations": iterations}}})


def _saves() -> dict[str, tuple[str, Save, Save]]:
    """Return, by what is saved, the name of the result, what saves the old one and what saves the new one."""
    old, new = gt.run(_scenario(1)), gt.run(_scenario(2))
    planned = [gt.plan(_scenario(count), seeds=1).plan for count in (1, 2)]
    compared = [gt.compare(_scenario(count)) for count in (1, 2)]
    trace = gt.from_kineto(ROOT / "tests/data/traces")
    return {
        "a run": ("out", old.save, new.save),
        "a study": ("out", compared[0].save, compared[1].save),
        "a plan": ("plan.json", planned[0].save, planned[1].save),
        "a trace": ("t.et", lambda path: trace.save(path, rank=0), lambda path: trace.save(path, rank=1)),
    }


def attack(deadline: float, most: int = 10**9) -> Result:
    """Attack every save; `most` faults of each kind."""
    result = Result({})
    for what, (name, save_old, save_new) in _saves().items():
        result.counts[what] = Counter()
        with tempfile.TemporaryDirectory(prefix="gradtide-saves.") as parent:
            path = Path(parent) / "place" / name

            def prepare(path: Path = path, save: Save = save_old) -> None:
                shutil.rmtree(path.parent, ignore_errors=True)
                path.parent.mkdir()
                save(path)

            prepare()
            old = folders.content(path)
            save_new(path)
            new = folders.content(path)
            for how, fault in HOW.items():
                for at in faults.every_fault(fault, lambda: save_new(path), prepare, lasts=how == "full"):  # noqa: B023
                    told = _after(path, old, new, save_new)
                    result.counts[what][told] += 1
                    if told not in FINE:
                        result.findings.setdefault(("saves", f"{what}, {how}: {told}"), at)
                    if at >= most or time.monotonic() > deadline:
                        break
    return result


FINE = ("old, then new", "new")


def _after(path: Path, old: dict[str, bytes] | None, new: dict[str, bytes] | None, save: Save) -> str:
    found = folders.content(path)
    if found not in (old, new):
        return "lost" if found is None else f"neither old nor new: {folders.differences(found, new)[:5]}"
    save(path)
    if folders.content(path) != new:
        return "the next save is another one"
    left = sorted(set(os.listdir(path.parent)) - {path.name})
    if left:
        return f"left behind: {left}"
    return "new" if found == new else "old, then new"
