"""The command `gradtide`, and `python -m gradtide`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C is recorded even before the first modules are loaded."""
    noted: list[int] = []
    # Loading `signals.catch` takes 20 ms, during which Python's own handler of Ctrl-C would print a traceback.
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
