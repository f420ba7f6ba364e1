"""Emulates a scenario with real packets: hosts are Linux network namespaces, joined by the packet engine's switches.

programs what runs on the hosts: commands of the user, senders of background flows and bursts, ranks that sleep instead
of computing results tables and figures of an emulation
"""

from gradtide.studies.emulate.results import EmulationResult
from gradtide.studies.emulate.study import emulate

__all__ = ["EmulationResult", "emulate"]
