"""The command `gradtide`, and `python -m gradtide`."""

import signal


def main() -> None:
    """Run the command line; signals are recorded before slow modules are loaded."""
    noted: list[int] = []
    # Until `catch`, which needs modules that take 20 ms, Python would answer Ctrl-C by a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    from gradtide import signals, streams

    streams.install()
    signals.catch(noted)
    from gradtide.cli import main as run

    try:
        run()
    except SystemExit as end:
        signals.leave(end.code)
        raise


if __name__ == "__main__":
    main()
