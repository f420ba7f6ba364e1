"""Relations between runs: what must stay, and what must change and by how much, when a scenario is changed.

A `Relation` takes a scenario as its dict and returns what is wrong, or nothing; `holds_for` says of which scenarios it
is true, and its docstring why it is not true of the others. The scenario need not be known: a relation is the test of
inputs whose right figures nobody has computed.

Times are compared in whole picoseconds. Where both runs make the same events, they must be equal. Where only the sums
of the same times differ, each event may be rounded by a picosecond: `ROUNDING_PS` is that for the most events that a
drawn scenario has.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import gradtide as gt
from attack.changes import (
    ROUNDING_PS,
    Ran,
    Times,
    apart,
    byte_tolerance_ps,
    changes_by_load,
    copied,
    draws_hosts,
    engine,
    equal,
    groups_by_leaf,
    has,
    has_bands,
    is_behind_a_barrier,
    is_only_layers,
    is_parallel,
    is_plain_star,
    is_pulled,
    is_random,
    is_symmetric,
    jobs,
    kind,
    leaves,
    moved,
    named_hosts,
    picoseconds,
    put,
    ran,
    renamed,
    resolved,
    respelled,
    rows_of,
    scaled,
    shuffled,
    take,
    tenants,
    with_hosts,
)
from attack.draws import Data
from gradtide import units
from gradtide.errors import SimulationError
from gradtide.scenario import Scenario

Check = Callable[[Data, Random], str]
RELATIONS: dict[str, "Relation"] = {}


@dataclass(frozen=True)
class Relation:
    """One relation.

    Attributes:
        holds_for: whether it is true of a scenario, by its dict.
        check: returns what is wrong.
    """

    holds_for: Callable[[Data], bool]
    check: Check


def relation(holds_for: Callable[[Data], bool]) -> Callable[[Check], Check]:
    """Register a check under its name."""

    def register(check: Check) -> Check:
        RELATIONS[check.__name__.replace("_", " ")] = Relation(holds_for, check)
        return check

    return register


# the same run in another way


@relation(lambda data: True)
def what_is_read_runs(data: Data, chance: Random) -> str:
    """What passes the checks of a scenario is not refused by the core, which knows no keys."""
    try:
        Scenario.from_dict(copied(data)).check_built()
    except gt.ScenarioError:
        return ""
    try:
        ran(data)
    except gt.GradtideError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@relation(lambda data: any(is_parallel(job) for job in jobs(data)) and engine(data) == "fluid")
def classes_are_ranks(data: Data, chance: Random) -> str:
    """One rank of each class stands for all of them; packets are always sent rank by rank."""
    scenario = Scenario.from_dict(copied(data))
    if scenario.spec()["run"]["all_ranks"]:
        return ""
    return equal(ran(scenario), ran(scenario, is_of_ranks=True), ROUNDING_PS)


@relation(lambda data: engine(data) == "packet" and bool(jobs(data)))
def probe_changes_nothing(data: Data, chance: Random) -> str:
    """A probe observes and has no effect."""
    probed = copied(data)
    probed["run"]["probe"] = {"every": "1s"}
    return equal(ran(data), ran(probed))


@relation(lambda data: True)
def defaults_may_be_written(data: Data, chance: Random) -> str:
    """Each key that the resolved scenario has may be given, and says the same."""
    whole = resolved(data)
    absent = [path for path, _ in leaves(whole) if not has(data, path)]
    if not absent:
        return ""
    path = chance.choice(absent)
    written = copied(data)
    put(written, path, take(whole, path))
    try:
        other = ran(written)
    except gt.ScenarioError as error:
        return f"{'.'.join(map(str, path))} of the resolved scenario is refused: {error.errors[0]['msg']}"
    if wrong := equal(ran(data), other):
        return f"{'.'.join(map(str, path))}: {wrong}"
    return ""


@relation(lambda data: True)
def resolved_is_given(data: Data, chance: Random) -> str:
    """All keys of the resolved scenario together say the same."""
    return equal(ran(data), ran(resolved(data)))


@relation(lambda data: True)
def units_are_only_texts(data: Data, chance: Random) -> str:
    """1 MB are 1000 kB and 1 Gbit/s are 1000 Mbit/s."""
    return equal(ran(data), ran(respelled(data)))


@relation(lambda data: "preset" not in data["cluster"])
def order_of_keys_changes_nothing(data: Data, chance: Random) -> str:
    """A table has no order, except that jobs and tenants take their turns in it."""
    return equal(ran(data), ran(shuffled(data, chance)))


# nothing is added


@relation(lambda data: is_plain_star(data) and not draws_hosts(data) and data["run"].get("follow") != "ns3")
def idle_hosts_change_nothing(data: Data, chance: Random) -> str:
    """Random traffic and placement would use the hosts, and timers as in ns-3 follow from the number of hosts."""
    more = with_hosts(data, chance.randint(1, 4))
    return equal(ran(with_hosts(data, 0)), ran(more))


@relation(lambda data: kind(data) == "custom" and not draws_hosts(data) and not groups_by_leaf(data))
def unused_links_change_nothing(data: Data, chance: Random) -> str:
    """A new slow cable leads to a host that nobody uses; groups of "leaf" would need equal switches."""
    more = copied(data)
    links = more["cluster"]["topology"]["links"]
    hosts = sum(end[0] == "h" for cable in links for end in (cable["a"], cable["b"]))
    links.append({"a": "s0", "b": f"h{hosts}", "rate": "10Mbps", "delay": "10ms"})
    return equal(ran(data), ran(more))


@relation(lambda data: is_plain_star(data) and not groups_by_leaf(data) and '"red"' not in json.dumps(data))
def a_node_of_one_gpu_changes_nothing(data: Data, chance: Random) -> str:
    """The GPU is the host. Groups are of a node by default, and of all hosts of a star without nodes.

    RED draws from a stream of the link's name.
    """
    more = with_hosts(data, 0)
    more["cluster"]["node"] = {"gpus": 1, "scale_up": {"rate": "900Gbps", "delay": "1us"}}
    return equal(ran(with_hosts(data, 0)), ran(more), ROUNDING_PS if engine(data) == "fluid" else 0)


@relation(lambda data: bool(jobs(data)) and "straggler" not in json.dumps(data) and not is_pulled(data))
def a_straggler_of_factor_1_changes_nothing(data: Data, chance: Random) -> str:
    """Its factor is that of all others. A job that begins with pulls has no stragglers."""
    more = copied(data)
    for job in jobs(more):
        job.setdefault("compute", {})["straggler"] = {"worker": 0, "factor": 1.0}
    return equal(ran(data), ran(more), ROUNDING_PS)


@relation(lambda data: bool(jobs(data)) and '"noise"' not in json.dumps(data) and not is_pulled(data))
def noise_of_0_changes_nothing(data: Data, chance: Random) -> str:
    """A job that begins with pulls has no noise."""
    more = copied(data)
    for job in jobs(more):
        job.setdefault("compute", {})["noise"] = 0.0
    return equal(ran(data), ran(more))


@relation(lambda data: is_plain_star(data) and not draws_hosts(data))
def a_byte_between_strangers_changes_nothing(data: Data, chance: Random) -> str:
    """Both of its hosts are new. Nothing is said of a job whose first iteration ends after the 10 s, by timeouts."""
    base = with_hosts(data, 2)
    base["run"].setdefault("duration", "10s")
    try:
        ran(base)
    except SimulationError:
        return ""
    more = copied(base)
    hosts = base["cluster"]["topology"]["hosts"]
    flow = {"start": "0s", "src": f"h{hosts - 2}", "dst": f"h{hosts - 1}", "bytes": "1B"}
    more.setdefault("traffic", {})["stranger"] = {"flows": [flow]}
    return equal(ran(base), ran(more), ROUNDING_PS, only_common=True)


@relation(lambda data: not is_random(data))
def another_seed_changes_nothing(data: Data, chance: Random) -> str:
    """Where `Scenario.drawn` finds nothing: studies run one seed of many then."""
    more = copied(data)
    more["run"]["seed"] = 12345
    return equal(ran(data), ran(more))


@relation(lambda data: bool(jobs(data)) and not changes_by_load(data))
def a_longer_run_keeps_the_prefix(data: Data, chance: Random) -> str:
    """Iterations that come later change none before; flows may go on when a shorter job is over."""
    more = copied(data)
    for job in jobs(more):
        job["iterations"] += 2
    short, long = ran(data), ran(more)
    iterations = [name for name in short.lengths if " iteration " in name]
    if missing := set(iterations) - long.lengths.keys():
        return f"no longer there: {sorted(missing)[:3]}"
    of_short, of_long = (
        [{name: times[name] for name in iterations} for times in (one.starts, one.lengths)] for one in (short, long)
    )
    return apart(of_short[0], of_long[0]) or apart(of_short[1], of_long[1])


# names


@relation(lambda data: bool(jobs(data)) and not is_random(data))
def names_of_jobs_change_nothing(data: Data, chance: Random) -> str:
    """What is drawn of a job is from streams of its name."""
    more = copied(data)
    names = {name: f"z{index}" for index, name in enumerate(more["job"])}
    more["job"] = {names[name]: job for name, job in more["job"].items()}
    back = {new: old for old, new in names.items()}
    return equal(ran(data), renamed(ran(more), back))


@relation(lambda data: any("layers" in job["model"] for job in jobs(data)))
def names_of_layers_change_nothing(data: Data, chance: Random) -> str:
    """Layers are in the order of the model."""
    more = copied(data)
    for job in jobs(more):
        for index, layer in enumerate(reversed(job["model"].get("layers", []))):
            layer["name"] = f"x{index}"
    return equal(ran(data), ran(more))


@relation(lambda data: kind(data) == "custom")
def order_of_links_changes_nothing(data: Data, chance: Random) -> str:
    """Cables are known by their ends."""
    more = copied(data)
    links = more["cluster"]["topology"]["links"]
    chance.shuffle(links)
    for cable in links:
        if chance.random() < 0.5:
            cable["a"], cable["b"] = cable["b"], cable["a"]
    return equal(ran(data), ran(more), ROUNDING_PS if engine(data) == "fluid" else 0)


@relation(
    lambda data: is_plain_star(data) and engine(data) == "fluid" and not draws_hosts(data) and not is_random(data)
)
def hosts_of_a_star_are_alike(data: Data, chance: Random) -> str:
    """Any host may take the place of any other. Packets that meet go by the numbers of their hosts."""
    base = named_hosts(with_hosts(data, 2))
    count = base["cluster"]["topology"]["hosts"]
    places = list(range(count))
    chance.shuffle(places)
    return equal(ran(base), ran(moved(base, places)), ROUNDING_PS)


@relation(lambda data: kind(data) == "custom" and '"red"' not in json.dumps(data))
def names_of_switches_change_nothing(data: Data, chance: Random) -> str:
    """A name that is no host's is only a name, but RED draws from a stream of the link's name."""
    more = copied(data)
    for cable in more["cluster"]["topology"]["links"]:
        for end in ("a", "b"):
            if cable[end][0] != "h":
                cable[end] = f"x{99 - int(cable[end][1:])}"
    return equal(ran(data), ran(more))


@relation(
    lambda data: kind(data) == "custom" and engine(data) == "fluid" and not (draws_hosts(data) or is_random(data))
)
def names_of_hosts_change_nothing(data: Data, chance: Random) -> str:
    """The same network under other names. Packets that meet go by the numbers of their hosts."""
    base = named_hosts(data)
    count = Scenario.from_dict(copied(data)).hosts
    places = list(range(count))
    chance.shuffle(places)
    more = moved(base, places)
    for cable in more["cluster"]["topology"]["links"]:
        for end in ("a", "b"):
            if cable[end][0] == "h":
                cable[end] = f"h{places[int(cable[end][1:])]}"
    return equal(ran(base), ran(more), ROUNDING_PS)


def _ends_of_flows(one: Ran) -> Times:
    """Return how long flows took by what each is, whichever number it has."""
    return {
        f"{row['bytes']} B from {row['src']} to {row['dst']} at {row['start_us']}": picoseconds(
            row["received_us"] or "-1"
        )
        for row in rows_of(one.output.flows)
    }


@relation(lambda data: engine(data) == "fluid" and len(tenants(data)) == 1 and "flows" in tenants(data)[0])
def tenants_are_only_names(data: Data, chance: Random) -> str:
    """Flows of a list may be those of one tenant or of two. Packets of equal times are sent in their order."""
    more = copied(data)
    flows = more["traffic"]["web"]["flows"]
    if len(flows) < 2:
        return ""
    more["traffic"] = {"web": {"flows": flows[:1]}, "more": {"flows": flows[1:]}}
    one, two = (_ends_of_flows(run) for run in (ran(data), ran(more)))
    return apart(one, two, ROUNDING_PS)


# what is alike


@relation(lambda data: is_plain_star(data) and not groups_by_leaf(data))
def a_star_is_a_custom_network(data: Data, chance: Random) -> str:
    """Its cables may be listed."""
    base = with_hosts(data, 0)
    more = copied(base)
    count = base["cluster"]["topology"]["hosts"]
    more["cluster"]["topology"] = {"kind": "custom", "links": [{"a": f"h{i}", "b": "s"} for i in range(count)]}
    return equal(ran(base), ran(more))


@relation(lambda data: len(jobs(data)) == 2 and is_plain_star(data) and not is_random(data) and not tenants(data))
def jobs_on_hosts_of_their_own_are_alone(data: Data, chance: Random) -> str:
    """They share no link of a star; draws would be from streams of several names.

    Measured are iterations in which all jobs run, so they are other ones than alone. Compared are jobs whose iterations
    are alike.
    """
    base = named_hosts(with_hosts(data, 0))
    together = ran(base)
    for name in base["job"]:
        alone = copied(base)
        alone["job"] = {name: {**alone["job"][name], "iterations": 5}}
        lengths = ran(alone).lengths
        if max(lengths.values()) - min(lengths.values()) > ROUNDING_PS:
            continue
        of_job = {key: length for key, length in together.lengths.items() if key.startswith(f"{name} ")}
        if wrong := apart(dict.fromkeys(of_job, min(lengths.values())), of_job, 2 * ROUNDING_PS):
            return f"alone, then together: {wrong}"
    return ""


@relation(lambda data: len(jobs(data)) == 1 and not tenants(data) and has_bands(data))
def a_band_alone_is_any_band(data: Data, chance: Random) -> str:
    """Nothing else is in any band."""
    low, high = copied(data), copied(data)
    jobs(low)[0]["priority"], jobs(high)[0]["priority"] = "low", "high"
    return equal(ran(high), ran(low))


@relation(lambda data: bool(jobs(data)) and not tenants(data))
def a_later_start_shifts_everything(data: Data, chance: Random) -> str:
    """Starts of traffic are part of its draws."""
    shift = chance.choice((1, 7_000, 1_000_003))
    more = copied(data)
    for job in jobs(more):
        job["start"] = f"{units.parse_time(job['start']) + shift if 'start' in job else shift}ps"
    early, late = ran(data), ran(more)
    shifted = {name: start + shift for name, start in early.starts.items()}
    tolerance = ROUNDING_PS if engine(data) == "fluid" else 0
    return apart(shifted, late.starts, tolerance) or apart(early.lengths, late.lengths, tolerance)


@relation(lambda data: is_only_layers(data) and engine(data) == "fluid" and "preset" not in data["cluster"])
def twice_the_bytes_at_twice_the_rates_take_as_long(data: Data, chance: Random) -> str:
    """Packets have headers, and a preset fixes its rates. Parts of a buffer differ by a byte, each message by two."""
    one = ran(data)
    return equal(one, ran(scaled(data, bytes_by=2, rates_by=2)), byte_tolerance_ps(one))


@relation(lambda data: is_only_layers(data) and engine(data) == "fluid" and "preset" not in data["cluster"])
def times_scale(data: Data, chance: Random) -> str:
    """Three times the bytes, delays and times of compute take three times as long."""
    more = scaled(data, bytes_by=3, times_by=3)
    few, many = ran(data), ran(more)
    return apart({name: 3 * length for name, length in few.lengths.items()}, many.lengths, 3 * byte_tolerance_ps(few))


@relation(
    lambda data: (
        kind(data) == "star"
        and "preset" not in data["cluster"]
        and engine(data) == "fluid"
        and len(jobs(data)) == 1
        and not tenants(data)
        and is_symmetric(data)
        and not is_random(data)
    )
)
def a_slow_port_delays_alike_wherever_it_is(data: Data, chance: Random) -> str:
    """Every rank of a ring, of all-gather and of all-to-all sends as much as any other, and every card of nodes."""
    base = with_hosts(data, 0)
    node = base["cluster"].get("node", {"gpus": 1})
    job = jobs(base)[0]
    count, gpus = base["cluster"]["topology"]["hosts"], node["gpus"]
    cards = job["workers"] * node.get("nics", gpus) // gpus
    if job["workers"] % gpus:
        return ""
    rate = f"{units.parse_rate(base['cluster']['link']['rate']) // 4}bps"

    def slow(index: int) -> Ran:
        links: list[Data] = [{"a": f"h{i}", "b": "s"} for i in range(count)]
        links[index]["rate"] = rate
        more = copied(base)
        more["cluster"]["topology"] = {"kind": "custom", "links": links}
        return ran(more)

    first = slow(0)
    return equal(first, slow(chance.randrange(cards)), byte_tolerance_ps(first))


# bounds


def later(one: Ran, other: Ran, why: str) -> str:
    """Return which iteration of the other run ends later; one that follows a disturbance may well be the shorter."""
    for name in other.starts:
        before, now = (run.starts[name] + run.lengths[name] for run in (one, other))
        if now > before + ROUNDING_PS:
            return f"{name} ends at {before / 1e6} us, {why} at {now / 1e6} us ({100 * (now / before - 1):+.3g} %)"
    return ""


@relation(lambda data: data["run"].get("follow") != "ns3")
def no_link_carries_more_than_its_rate(data: Data, chance: Random) -> str:
    """Bytes of a link take at least their time at its rate, and a link is busy for no longer than the run.

    ns-3 rounds the time of a packet to a whole nanosecond.
    """
    found = ran(data)
    end_ps = json.loads(found.output.summary_json)["end_ps"]
    for row in rows_of(found.output.links):
        least_ps = int(row["bytes"]) * 8 * 10**12 // int(row["rate_bps"])
        # What is under way when the run is cut off is counted at its start.
        if picoseconds(row["busy_us"]) > end_ps + ROUNDING_PS:
            return f"{row['link']} is busy for {row['busy_us']} us of {end_ps / 1e6} us"
        if least_ps > end_ps + ROUNDING_PS:
            return f"{row['link']} carries {row['bytes']} B in {end_ps / 1e6} us, which take {least_ps / 1e6} us"
    return ""


@relation(
    lambda data: (
        engine(data) == "fluid"
        and len(jobs(data)) == 1
        and tenants(data) != []
        and is_behind_a_barrier(data)
        and "ps" not in jobs(data)[0].get("collective", {})
    )
)
def no_background_is_never_slower(data: Data, chance: Random) -> str:
    """A ring that is alone; without the barrier, or in another order, a later transfer can let a more urgent one pass.

    Ranks of other collectives that a flow has set apart may share their links better than those in step. Of packets,
    one that is lost can let another one pass.
    """
    beside = copied(data)
    jobs(beside)[0]["collective"] = {"kind": "ring"}
    alone = copied(beside)
    del alone["traffic"]
    return later(ran(beside), ran(alone), "without the flows")


@relation(
    lambda data: (
        is_only_layers(data)
        and engine(data) == "fluid"
        and len(jobs(data)) == 1
        and not tenants(data)
        and is_behind_a_barrier(data)
        and "preset" not in data["cluster"]
    )
)
def faster_links_never_slow(data: Data, chance: Random) -> str:
    """Behind a barrier and in the order of the gradients, every transfer starts no later."""
    faster = scaled(data, rates_by=2)
    return later(ran(data), ran(faster), "at twice the rates")


@relation(lambda data: engine(data) == "fluid" and len(jobs(data)) + len(tenants(data)) > 0)
def an_accuracy_is_kept(data: Data, chance: Random) -> str:
    """Times of jobs and of all flows together are within `run.accuracy` of those of exact rates."""
    share = chance.choice((0.001, 0.01, 0.05))
    more = copied(data)
    more["run"]["accuracy"] = f"{100 * share:g}%"
    exact, bounded = ran(data), ran(more)
    for name in {name.split(" ")[0] for name in exact.lengths}:
        totals = [
            sum(max(0, size) for key, size in one.lengths.items() if key.split(" ")[0] == name)
            for one in (exact, bounded)
        ]
        if abs(totals[1] - totals[0]) > share * totals[0] + ROUNDING_PS:
            return f"{name}: {totals[0] / 1e6} us exactly, {totals[1] / 1e6} us at {100 * share:g} %"
    return ""


@relation(lambda data: not jobs(data))
def slowdown_is_at_least_1(data: Data, chance: Random) -> str:
    """No flow is faster than alone on the idle network."""
    result = gt.run(Scenario.from_dict(copied(data)))
    for tenant, classes in result.summary["traffic"].items():
        for name, figures in classes.items():
            for key, value in figures.items() if isinstance(figures, dict) else ():
                if "slowdown" in key and isinstance(value, (int, float)) and value < 1 - 1e-9:
                    return f"{tenant}, {name}: {key} is {value}"
    return ""
