"""No file and no Python function is longer than the project allows."""

from pathlib import Path

import pytest

import scripts

ROOT = Path(__file__).resolve().parent.parent
lengths = scripts.load("tools/lengths.py")


def test_nothing_is_too_long() -> None:
    assert {name for name, _ in lengths.found()} == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Header."""\n' + "x = 1\n" * 600, True),
        ('"""Header.\n\nIt is longer than 600\nlines because it is a table.\n"""\n' + "x = 1\n" * 600, False),
        ("x = 1\n" * 600, False),
    ],
)
def test_a_long_file_says_why(text: str, expected: bool) -> None:
    assert lengths.is_too_long(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n" + "    x = 1\n" * 80, [("f", 81)]),
        ("def f():  # a table\n" + "    x = 1\n" * 80, []),
        ('def f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * 79, []),
        ("class C:\n    async def f(self):\n" + "        x = 1\n" * 81, [("f", 82)]),
    ],
)
def test_a_long_function_is_found(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(lengths.long_functions(text)) == expected
