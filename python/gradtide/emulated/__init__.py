"""Programs of emulated hosts: real senders and receivers that play the flows and jobs of a scenario.

`gradtide emulate` starts `python -m gradtide.emulated PLAN` on each host that has something to send or receive. The
plan is a JSON file; the program prints one JSON document per line: "ready", then its results. All times are those of
CLOCK_REALTIME, which the hosts share, as they are namespaces of one machine.
"""

FLOW_PORT, JOB_PORT = 7475, 7480
"""Port of the receivers of flows, and of the first job; each job has the next port."""
