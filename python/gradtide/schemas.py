"""The `schema` of JSON documents, as in `gradtide.run/1`: the kind of document, and its version.

The version increases when a key is removed or changes its meaning, but not for a new key (docs/reference/stability.md).
"""

import re
from collections.abc import Iterable


def kind_and_version(schema: object) -> tuple[str, int] | None:
    """Return kind and version of a schema; None if it is not a schema of gradtide.

    Example:
        >>> kind_and_version("gradtide.run/1")
        ('run', 1)
    """
    match = re.fullmatch(r"gradtide\.([a-z_-]+)/([0-9]{1,9})", schema) if isinstance(schema, str) else None
    return None if match is None else (match[1], int(match[2]))


def newer_version(schema: object, known: Iterable[str]) -> str | None:
    """Return the message for a document of a known kind whose version is newer than the known ones.

    Args:
        schema: `schema` of the document.
        known: schemas that this version of gradtide reads.

    Returns:
        A sentence without its full stop; None for any other document.
    """
    found = kind_and_version(schema)
    versions = dict(filter(None, map(kind_and_version, known)))
    if found is None or found[1] <= versions.get(*found):
        return None
    reads = f"gradtide.{found[0]}/{versions[found[0]]}"
    return f"is of a newer version of gradtide: its schema is {schema}, and this version reads {reads}"
