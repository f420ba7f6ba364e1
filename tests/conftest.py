"""What holds for all tests."""

import signal

import pytest

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the commands that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """Let no test depend on the width of the terminal that it is started in."""
    monkeypatch.setenv("COLUMNS", "10000")
