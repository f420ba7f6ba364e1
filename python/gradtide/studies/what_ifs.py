"""What-if runs: a scenario's jobs at other link rates and in other orders, with and without the barrier."""

from itertools import product

from gradtide import units
from gradtide.estimate import WHAT_IF_ITERATIONS
from gradtide.results import Table
from gradtide.scenario import Scenario
from gradtide.scenario.core.edited import run_at
from gradtide.scenario.resolve.schedule import PLANNED
from gradtide.studies.network import altered, has_rate_of_links

# Common link rates. What-if runs use the common rates from a tenth of the scenario's own rate upwards, and half, one,
# two and four times its own rate. From these runs the report derives the rate beyond which the network does not matter.
WHAT_IF_RATES_BPS = tuple(int(gbps * 1e9) for gbps in (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 400, 800))
SLOWEST_WHAT_IF = 10


def has_what_ifs(scenario: Scenario) -> bool:
    """Return whether what-if runs follow a run: only for a single job without other traffic on the fluid engine.

    For such a job, the runs at all rates take a fraction of a second, because each exchange size is simulated once.
    They would take seconds if the order had to be planned for each rate, and longer than the run itself on the packet
    engine or with background flows.
    """
    if any(job.is_parallel for job in scenario.jobs):
        return False
    if scenario.engine != "fluid" or not has_rate_of_links(scenario):
        return False
    is_alone = len(scenario.jobs) == 1 and not scenario.traffic
    return is_alone and scenario.jobs[0].schedule.order not in PLANNED


def bandwidth(scenario: Scenario) -> Table:
    """Run the jobs at other link rates, in several orders, with and without the barrier.

    The orders are FIFO and the job's own; if the job's own is FIFO, they are FIFO and priority. The table is empty if
    no job sends data, or if a job has parameter servers with pull = "start", to which these schedules do not apply.
    """
    rows: list[tuple[str, int, str, bool, float, float, float]] = []
    at_rate: dict[int, Scenario] = {}
    for rate_bps, order, barrier in _what_ifs(scenario):
        if rate_bps not in at_rate:
            is_star = scenario.fabric.kind == "star"
            # Rates of links between switches follow `link_rate`, unless the scenario sets them.
            at_rate[rate_bps] = scenario if is_star else altered(scenario, link_rate=units.format_rate(rate_bps))
        for job in run_at(at_rate[rate_bps], rate_bps, order, barrier=barrier, most_iterations=WHAT_IF_ITERATIONS):
            times_us = [ps / 1e6 for ps in job["iteration_time_ps"]]
            mean_us = sum(times_us) / len(times_us)
            waits_us = (job["exposed_ps"] / 1e6, job["barrier_ps"] / 1e6)
            rows.append((job["name"], rate_bps, order, barrier, mean_us, *waits_us))
    names = ("job", "rate_bps", "order", "barrier", "iteration_time_us", "exposed_us", "barrier_us")
    return Table.of({name: [row[index] for row in rows] for index, name in enumerate(names)})


def _what_ifs(scenario: Scenario) -> list[tuple[int, str, bool]]:
    own = [job.schedule.order for job in scenario.jobs if job.schedule.order not in ("fifo", "priority")]
    orders = dict.fromkeys(("fifo", *own))
    orders = orders if len(orders) > 1 else dict.fromkeys(("fifo", "priority"))
    rates_bps = what_if_rates(scenario.link_rate_bps)
    senders = [job.name for job in scenario.jobs if job.workers > 1 and job.parameter_bytes]
    if any(job.is_pulled for job in scenario.jobs):
        senders = []
    return list(product(rates_bps if senders else (), orders, (True, False)))


def what_if_count(scenario: Scenario) -> int:
    """Return the number of what-if runs that follow the run of a scenario on the command line."""
    return len(_what_ifs(scenario)) if has_what_ifs(scenario) else 0


def what_if_rates(own_bps: int) -> list[int]:
    """Return the link rates of the what-if runs: common ones from a tenth of `own_bps`, and four near `own_bps`."""
    fastest_bps = max(WHAT_IF_RATES_BPS[-1], own_bps)
    around = {rate_bps for rate_bps in (own_bps // 2, own_bps, 2 * own_bps, 4 * own_bps) if rate_bps <= fastest_bps}
    known = {rate_bps for rate_bps in WHAT_IF_RATES_BPS if rate_bps * SLOWEST_WHAT_IF >= own_bps}
    return sorted((around | known) - {0})
