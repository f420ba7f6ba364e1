"""The command `gradtide`, and `python -m gradtide`."""

from gradtide import signals


def main() -> None:
    """Run the command line; signals are noted before anything is loaded that takes time."""
    signals.catch()
    from gradtide.cli import main as run

    try:
        run()
    except SystemExit as end:
        signals.leave(end.code)
        raise


if __name__ == "__main__":
    main()
