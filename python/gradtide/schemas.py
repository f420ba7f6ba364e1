"""What the `schema` of a JSON document says, as in `gradtide.run/1`: the kind of document, and its version.

A version is raised when a key goes or means another thing, and not for a new key (docs/reference/stability.md).
"""

import re
from collections.abc import Iterable


def kind_and_version(schema: object) -> tuple[str, int] | None:
    """Return kind and version of a schema; None if it is not one of gradtide's.

    Example:
        >>> kind_and_version("gradtide.run/1")
        ('run', 1)
    """
    match = re.fullmatch(r"gradtide\.([a-z_-]+)/([0-9]{1,9})", schema) if isinstance(schema, str) else None
    return None if match is None else (match[1], int(match[2]))


def other_version(schema: object, known: Iterable[str]) -> str | None:
    """Return the fault of a document of a known kind with an unknown version.

    Args:
        schema: what the document says.
        known: the schemas that this version of gradtide reads.

    Returns:
        A sentence without its end; None if the document is of a known schema, or of another kind.
    """
    found = kind_and_version(schema)
    versions = dict(filter(None, map(kind_and_version, known)))
    if found is None or versions.get(found[0], found[1]) == found[1]:
        return None
    kind, version = found
    age = "a newer" if version > versions[kind] else "an earlier"
    return (
        f"is of {age} version of gradtide: its schema is {schema}, and this version reads "
        f"gradtide.{kind}/{versions[kind]}"
    )
