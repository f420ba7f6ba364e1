"""Shows the notebooks of examples/ as pages of the site: mkdocs calls the hooks below (`hooks` in mkdocs.yml).

A page `notebooks/NAME.md` exists only in the site. Pages of `docs/` link to the notebook file instead, so that the
links work in the repository, too; `on_page_markdown` replaces them with links to the page.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page_of(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to notebook files with links to their pages."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.ipynb\)", rf"]({up}notebooks/\1.md)", markdown)


def page_of(path: Path) -> str:
    """Return a notebook as Markdown, with its stored outputs."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../"))
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_shown(output) for output in cell["outputs"]]
    title, *rest = parts
    where = f"*This page shows the notebook `examples/{path.name}` of the repository.*"
    return "\n\n".join([title, where, *rest]) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown: a picture, otherwise a table, otherwise text."""
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    if "image/png" in data:
        png = "".join(data["image/png"].split())
        return f'<img alt="Chart drawn by the cell above" src="data:image/png;base64,{png}">'
    if "text/html" in data:
        # A blank line would end the HTML block.
        table = re.sub(r"\n\s*\n", "\n", data["text/html"])
        return f'<div class="notebook-table">\n{table}\n</div>'
    return f"```text\n{data.get('text/plain', ''.join(output.get('text', ''))).rstrip()}\n```"
