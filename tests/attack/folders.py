"""What is in a folder or file of results, so that two can be compared byte by byte."""

import json
from pathlib import Path


def content(path: Path) -> dict[str, bytes] | None:
    """Return the bytes of every file of a result by name; None if there is no result.

    What two equal runs do not share is left out: when they were made, and the digest of nothing else depends on it.
    """
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.is_dir():
        return None
    found = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    for name in found:
        if name.endswith("versions.json"):
            versions = json.loads(found[name])
            versions.pop("made_at", None)
            found[name] = json.dumps(versions).encode()
    return found


def differences(one: dict[str, bytes] | None, other: dict[str, bytes] | None) -> list[str]:
    """Return the names of files that differ."""
    if one is None or other is None:
        return [] if one is other else ["everything"]
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
