"""A page of a report as its numbers, charts and links, for the tests of reports."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """The elements of a page with their attributes, and the texts of the elements with each `data-key`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {k: v or "" for k, v in attrs}
        self.elements.append((tag, attributes))
        if tag not in ("meta", "link", "input", "br"):
            self._open.append((tag, attributes.get("data-key")))
            if "data-key" in attributes:
                self.texts.setdefault(attributes["data-key"], []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, key in self._open:
            if key is not None:
                self.texts[key][-1] += data


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def leaf(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return value


def sound(page: Page) -> None:
    """Check a page: no external resources, names for graphics, unique ids, and no script but that of the report."""
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "onclick", "onload", "onerror"} & set(attributes)
        assert re.match(r"#|data:,|cells/[\w.-]+/report\.html$", attributes.get("href", "#"))
        if tag in ("img", "svg"):
            named = attributes.get("role") == "img" and attributes.get("aria-label")
            assert named or attributes.get("aria-hidden") == "true", attributes
        if attributes.get("tabindex") == "0" and tag != "pre":
            assert attributes.get("role") in ("group", "region")
            assert attributes.get("aria-label")
    scripts = [a for tag, a in page.elements if tag == "script"]
    assert [a for a in scripts if "data-chart" not in a] == [{}]


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
