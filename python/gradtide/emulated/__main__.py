"""`python -m gradtide.emulated PLAN`: runs the flows and jobs of one emulated host."""

import json
import sys
import threading
from pathlib import Path

from gradtide.emulated.flows import Receiver, send_all
from gradtide.emulated.job import Rank


def main() -> None:
    """Run the plan's flows and jobs, report when all have ended, and keep receiving until the process is killed."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    receiver = Receiver()
    threading.Thread(target=receiver.run, daemon=True).start()
    ranks = [Rank(job) for job in plan["jobs"]]
    print(json.dumps({"kind": "ready"}), flush=True)
    # gradtide writes the start time to this file when all hosts are ready. A rename makes it appear complete.
    start = Path(plan["start"])
    while not start.exists():
        threading.Event().wait(0.005)
    start_ns = int(start.read_text(encoding="ascii"))
    parts = [threading.Thread(target=rank.play, args=(start_ns,), daemon=True) for rank in ranks]
    parts.append(threading.Thread(target=send_all, args=(plan["flows"], start_ns), daemon=True))
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    print(json.dumps({"kind": "done"}), flush=True)
    # Keep receiving flows of other hosts until gradtide ends this process.
    threading.Event().wait()


if __name__ == "__main__":
    main()
