"""Lists what is random in a scenario.

If nothing is random, every seed gives the same run, and a study of several seeds runs only one. The list is complete
but conservative: it includes draws that may have no effect, such as those of a RED queue that never fills.
"""

from collections.abc import Iterator

from gradtide.scenario.job import Job
from gradtide.scenario.resolve.resolved import Resolved
from gradtide.units import PPM


def drawn(resolved: Resolved) -> tuple[str, ...]:
    """Return what the seed determines, such as "the routes of connections"; empty if nothing is random."""
    several = len(resolved.jobs) > 1
    found = [f"{what} of {job.name}" if several else what for job in resolved.jobs for what in _of_job(job, resolved)]
    return (*found, *_of_network(resolved))


def _of_job(job: Job, resolved: Resolved) -> Iterator[str]:
    compute, straggler = job.compute, job.compute.straggler
    if compute.noise_ppm > 0:
        yield "the compute times"
    if straggler is not None and straggler.factor_ppm > PPM and straggler.probability_ppm > 0:
        if straggler.worker is None and job.computing > 1:
            yield "which worker is slow"
        elif straggler.probability_ppm < PPM:
            yield "when a worker is slow"
    if compute.order == "random":
        yield "the order of ops"
    # The search for the best order of pulls has random starting points.
    is_searched = job.is_pulled and job.schedule.order == "optimal"
    if len(job.hosts) > 1 and (job.draws_orders or is_searched or job.schedule.disorder_ppm):
        yield "the order of transfers"
    if job.placement == "random" and resolved.fabric.host_count > 1:
        yield "the hosts of ranks"


def _of_network(resolved: Resolved) -> Iterator[str]:
    cluster, run = resolved.file.cluster, resolved.file.run
    for origin in resolved.origins:
        if origin.is_random:
            yield f"the flows of {origin.name}"
    if cluster.routing == "ecmp" and resolved.fabric.has_choice(resolved.groups()):
        yield "the routes of connections"
    if run.engine == "packet":
        if resolved.origins and run.start_jitter_ps:
            yield "the jitter of starts"
        if cluster.queue.kind == "red" and any(len(group) > 1 for group in resolved.groups()):
            yield "which packets RED marks or drops"
