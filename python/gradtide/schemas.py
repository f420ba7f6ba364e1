"""The key `schema` of a JSON document, as in `gradtide.run/1`, states the kind of the document and its version.

A version is raised when a key is removed or changes its meaning, and not for a new key (docs/reference/stability.md).
"""

import re
from collections.abc import Iterable


def kind_and_version(schema: object) -> tuple[str, int] | None:
    """Return kind and version of a schema; None if it is no schema of gradtide.

    Example:
        >>> kind_and_version("gradtide.run/1")
        ('run', 1)
    """
    match = re.fullmatch(r"gradtide\.([a-z_-]+)/([0-9]{1,9})", schema) if isinstance(schema, str) else None
    return None if match is None else (match[1], int(match[2]))


def newer_version(schema: object, known: Iterable[str]) -> str | None:
    """Return the fault of a document of a known kind and a newer version.

    Args:
        schema: the value of the document's key `schema`.
        known: the schemas that this version of gradtide reads.

    Returns:
        A sentence without its full stop; None if the document has no newer version.
    """
    found = kind_and_version(schema)
    versions = dict(filter(None, map(kind_and_version, known)))
    if found is None or found[1] <= versions.get(*found):
        return None
    reads = f"gradtide.{found[0]}/{versions[found[0]]}"
    return f"is of a newer version of gradtide: its schema is {schema}, and this version reads {reads}"
