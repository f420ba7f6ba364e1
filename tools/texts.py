"""Draws comments, docstrings and paragraphs of docs at random, for a reader who has not seen the code.

    python tools/texts.py [--seed N] [--count N]   prints texts, each with its place and the code that follows it
    python tools/texts.py --words WORD…            prints where comments and docstrings contain a word

The measure of our texts: of 40 that a seed draws, a senior engineer has to read at most four twice.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SHARES = {"crates": 0.4, "python": 0.35, "docs": 0.25}
"""Shares of the drawn texts by folder, about equal to the shares of words."""
LEAST_WORDS = 8
"""Shorter texts are labels."""
CODE_LINES = 4


class Text(NamedTuple):
    """A comment, a docstring or a paragraph, with its position and the code beside it."""

    path: Path
    line: int
    text: str
    code: str = ""


def of_rust(path: Path) -> Iterator[Text]:
    """Yield the blocks of comments of a Rust file, with the code below each."""
    lines = path.read_text().splitlines()
    start, block = 0, []
    for number, line in enumerate([*lines, ""], 1):
        match = re.match(r"\s*//[/!]? ?(.*)", line)
        if match:
            start = start or number
            block.append(match[1])
        elif block:
            code = "\n".join(lines[number - 1 : number - 1 + CODE_LINES])
            yield Text(path, start, "\n".join(block), code)
            start, block = 0, []


def of_python(path: Path) -> Iterator[Text]:
    """Yield the docstrings, texts below assignments and comments of a Python file."""
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            above = lines[max(0, node.lineno - 1 - CODE_LINES) : node.lineno - 1]
            yield Text(path, node.lineno, node.value.value.strip(), "\n".join(above))
    start, block, before = 0, [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != before + 1 and block:
            yield Text(path, start, "\n".join(block), "\n".join(lines[before : before + CODE_LINES]))
            start, block = 0, []
        start, before = start or token.start[0], token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield Text(path, start, "\n".join(block), "\n".join(lines[before : before + CODE_LINES]))


def of_markdown(path: Path) -> Iterator[Text]:
    """Yield the paragraphs and list entries of a page, without code, tables and headings."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("#", "|", ">", "<", "    ")):
            yield Text(path, number, line)


READERS = {
    "crates": ("*.rs", of_rust),
    "python": ("*.py", of_python),
    "docs": ("*.md", of_markdown),
}


def texts(place: str) -> list[Text]:
    """Return the texts of a folder that are long enough to be read."""
    pattern, reader = READERS[place]
    paths = sorted(path for path in (ROOT / place).rglob(pattern) if "target" not in path.parts)
    found = (text for path in paths for text in reader(path))
    return [text for text in found if len(text.text.split()) >= LEAST_WORDS]


def main() -> None:
    """Print the requested texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--words", nargs="+", metavar="WORD", help="list where comments and docstrings contain these")
    asked = parser.parse_args()
    if asked.words:
        word = re.compile(rf"\b({'|'.join(map(re.escape, asked.words))})\b")
        for place in ("crates", "python"):
            for text in texts(place):
                for line, content in enumerate(text.text.splitlines(), text.line):
                    if word.search(content):
                        print(f"{text.path.relative_to(ROOT)}:{line}: {content.strip()}")
        return
    chance = Random(asked.seed)
    number = 0
    for place, share in SHARES.items():
        for text in chance.sample(texts(place), round(share * asked.count)):
            number += 1
            print(f"{number}. {text.path.relative_to(ROOT)}:{text.line}\n\n{text.text}\n")
            if text.code:
                print("".join(f"    {line}\n" for line in text.code.splitlines()))


if __name__ == "__main__":
    main()
