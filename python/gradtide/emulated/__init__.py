"""Programs of emulated hosts: real senders and receivers of a scenario's flows, and ranks of its jobs.

`gradtide emulate` starts `python -m gradtide.emulated PLAN` on each host that has something to send or receive. The
plan is a JSON file. The program prints one JSON document per line: "ready", then its results. All times are from
CLOCK_REALTIME, which the hosts share because they are namespaces of one machine.
"""

FLOW_PORT, JOB_PORT = 7475, 7480
"""TCP ports of the receivers of flows, and of job 0. Job k has the port `JOB_PORT` + k."""
