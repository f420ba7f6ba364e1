"""A scenario on real packets: hosts are network namespaces, and their switches are the packet engine's.

programs   what runs on the hosts: commands of the user, senders of background flows and bursts, ranks that sleep
results    tables and figures of an emulation
"""

from gradtide.studies.emulate.results import EmulationResult
from gradtide.studies.emulate.study import emulate

__all__ = ["EmulationResult", "emulate"]
