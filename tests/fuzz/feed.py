"""Feeds a target of hypothesis with random bytes, for as long as asked."""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from attack.readers import PACKAGE
from fuzz.targets import TARGETS

SIZES = (64, 512, 4096)
"""Bytes that hypothesis makes an example from: few give small examples."""
TRACED = 50
"""Of so many executions one is traced, which takes ten times as long."""


def feed(name: str, seconds: float, seed: int, out: Path) -> dict[str, Any]:
    """Run a target until it fails or the time is up; return its executions, lines that it reached, and the finding."""
    chance = Random(f"{seed} {name}")
    one_input: Callable[[bytes], bytes | None] = TARGETS[name].hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    lines: set[tuple[str, int]] = set()
    count, finding = 0, ""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not finding:
        data = chance.randbytes(chance.choice(SIZES))
        sys.settrace(_tracer(lines) if count % TRACED == 0 else None)
        try:
            count += one_input(data) is not None
        except BaseException as error:  # a panic of the core is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            path = out / f"{name}-{count}"
            path.write_bytes(data)
            again = f"TARGETS[{name!r}].hypothesis.fuzz_one_input"
            finding = f"{traceback.format_exc()}{path}: {again} repeats it with the bytes of this file"
        finally:
            sys.settrace(None)
    return {"executions": count, "lines": len(lines), "finding": finding}


def _tracer(lines: set[tuple[str, int]]) -> Callable[[FrameType, str, Any], Any]:
    start = str(PACKAGE)

    def in_package(frame: FrameType, event: str, value: Any) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return in_package

    def called(frame: FrameType, event: str, value: Any) -> Any:
        return in_package if frame.f_code.co_filename.startswith(start) else None

    return called
