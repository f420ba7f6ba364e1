"""What `gradtide plan` tells in sentences: the headline, and what to do with the plan."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradtide import words
from gradtide.measured import saving_errors, time_errors
from gradtide.scenario.plan import Plan
from gradtide.studies.channels import Channel
from gradtide.studies.plan.found import Found, plan_of
from gradtide.studies.search import MIB, Choice

WORTH_IT, TRY, LEAVE = "worth it", "worth a try", "leave alone"
"""Verdicts: surely enough is saved; enough is predicted, and the interval reaches below; not enough is predicted."""


def verdict(row: Mapping[str, Any], worth: float) -> str:
    """Return the verdict on the row that was chosen; a plan has to save `worth` per cent."""
    if row["level"] == "none":
        return LEAVE
    return WORTH_IT if row["saves_low_percent"] >= worth else TRY


def caps(plan: Plan) -> str:
    """Return the value of DistributedDataParallel's `bucket_cap_mb_list` that gives a plan's buckets.

    DDP closes a bucket with the gradient that reaches its cap; rounded down, so that it is the plan's last layer.
    """
    rounded = [math.floor(1e4 * one.bytes / MIB) / 1e4 for one in plan.buckets]
    return f"[{', '.join(f'{cap:g}' for cap in rounded)}]"


def channel_name(channel: Channel) -> str:
    """Name a collective with its depth."""
    name = words.collective(channel.collective["kind"])
    return name if channel.depth == 1 else f"{name}, depth {channel.depth}"


def headline(found: Found, plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    """Return the plan in one sentence: for what and on what, what it does and what it saves."""
    runtime = found.settings.runtime
    baseline = "DDP" if found.baseline == "ddp" else "the scenario's schedule"
    before = words.milliseconds(found.baseline_ms)
    who = f"{plan.model} on {words.workers(plan.workers or 0)}, {runtime.name}"
    if plan.level == "none":
        most = _most(rows)
        gain = "saves nothing" if most is None else f"saves {gain_of(most)}"
        return f"{who}: leave {baseline} alone. An iteration takes {before}, and the best plan found {gain}."
    row = next(row for row in rows if row["chosen"])
    after = words.milliseconds(row["iteration_ms"])
    what = words.schedule(plan.order, plan.barrier)
    by = words.collective(dict(plan.collective)["kind"])
    sentence = (
        f"{who}: {what} in {words.buckets(len(plan.buckets))}, exchanged by {by}, is predicted to save {gain_of(row)} "
        f"over {baseline}: {after} instead of {before}"
    )
    bound = row["above_bound_percent"]
    return f"{sentence}." if bound is None else f"{sentence}, {bound:.1f} % above the lower bound."


def advice(found: Found, chosen: str, best: Mapping[str, Choice], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what to do with the plan, and what its figures rest on."""
    settings, runtime = found.settings, found.settings.runtime
    worth = 100 * settings.worth
    row = next(row for row in rows if row["chosen"])
    said = []
    if chosen == "none":
        what = "DDP" if found.baseline == "ddp" else "the schedule"
        most = _most(rows)
        why = "no plan saves anything" if most is None else f"the best plan found saves {gain_of(most)}"
        said.append(f"Leave {what} alone: {why}.")
    elif verdict(row, worth) == WORTH_IT:
        said.append(f"Worth it: even the low end of the interval saves {row['saves_low_percent']:.1f} %.")
    else:
        low = row["saves_low_percent"]
        reach = f"a loss of {-low:.1f} %" if low < 0 else f"{low:.1f} %"
        said.append(f"Worth a try, but measure it: the interval reaches down to {reach}.")
    if chosen in ("priority", "crossiter") and not runtime.any_collective:
        what = "sends in the plan's order" + (
            "" if chosen == "priority" else " and lets each layer begin when its own gradients are there"
        )
        said.append(f'gradtide.torch.wrap(model, optimizer, "plan.json") {what}: level {chosen}.')
    if chosen != "none" and "buckets" in best:
        said += _ddp_alone(found, chosen, best["buckets"], rows)
    if chosen != "none":
        said += _exchange(found, best[chosen])
        if row["overhead_us"]:
            cost = words.number(row["overhead_us"] / 1e3)
            said.append(f"Each message is charged {cost} ms for the scheduler; --overhead sets this.")
    said += _limits(found)
    if row["saves_low_percent"] is not None:
        said.append(_basis())
    if found.noisy_s and row["jitter_low_percent"] is not None:
        assumed = " (assumed; compute.noise sets it)" if settings.noise_is_assumed else ""
        low, high = row["jitter_low_percent"], row["jitter_high_percent"]
        said.append(
            f"With compute times that vary by {100 * settings.noise:g} %{assumed}, the predicted saving lies between "
            f"{low:.1f} and {high:.1f} %."
        )
    return said


def _ddp_alone(found: Found, chosen: str, choice: Choice, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say how DDP alone has the plan's buckets, or the best ones without another order."""
    plan = plan_of(found, choice)
    row = next(row for row in rows if row["name"] == "buckets")
    if chosen == "buckets":
        return [f"DDP: bucket_cap_mb_list={caps(plan)}, from PyTorch 2.13 on. gradtide.torch.wrap sets it, too."]
    if row["saves_percent"] < 100 * found.settings.worth:
        return []
    is_own = plan.collective == found.channels[0].collective
    beside = "alone" if is_own else f"and {words.collective(plan.collective['kind'])}"
    return [f"Without it, DDP: bucket_cap_mb_list={caps(plan)} {beside} saves {gain_of(row)}."]


def _exchange(found: Found, choice: Choice) -> list[str]:
    """Say how to have the plan's collective, where it is not the scenario's."""
    channel, own = found.channels[choice.channel], found.channels[0]
    said = []
    if channel.collective != own.collective:
        kind = channel.collective["kind"]
        how = found.settings.runtime.collectives.get(kind, "which no library here can be told to use")
        said.append(f"The plan exchanges by {words.collective(kind)}: {how}.")
    if channel.depth != own.depth:
        said.append(f"The plan cuts each message into {channel.depth} parts, which are exchanged side by side.")
    return said


def _limits(found: Found) -> list[str]:
    """Say what the runtime cannot do, so that the plan does not ask for it."""
    settings, runtime = found.settings, found.settings.runtime
    if runtime.any_collective:
        return ["No known runtime carries all of this out: --device ideal searches whatever gradtide models."]
    said = []
    own = found.channels[0].collective["kind"] if found.channels else None
    if own is not None and not runtime.allows(own):
        known = " and ".join(runtime.collectives)
        said.append(f"The scenario exchanges by {words.collective(own)}, but {runtime.name} can only be told {known}.")
    if not settings.runtime_is_known:
        said.append(
            "The scenario names no device, so the plan uses only what every device can carry out. --device cpu or "
            "--device gpu allows what that one can."
        )
    else:
        said.append(f"Not used, since gradtide cannot set it on {runtime.name}: {', '.join(runtime.cannot)}.")
    return said


def _basis() -> str:
    """Say what the interval rests on."""
    savings, times = saving_errors(), time_errors()
    ratios, errors = (" to ".join(f"{100 + end:.0f}" for end in one.range_percent) for one in (savings, times))
    return (
        f"The interval comes from {len(savings.logs)} measured savings in {savings.setups} setups, all with gloo on "
        f"CPUs. Measured over predicted, the ratio of plan to baseline was {ratios} %, and {len(times.logs)} iteration "
        f"times were {errors} %. Errors of either sign are assumed possible."
    )


def _most(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of the plan that saves most; `None` if none saves anything."""
    saving = [row for row in rows if row["level"] != "none" and row["saves_percent"] > 0]
    return max(saving, key=lambda row: row["saves_percent"], default=None)


def gain_of(row: Mapping[str, Any]) -> str:
    """Write what a row saves, with its interval."""
    low, high = row["saves_low_percent"], row["saves_high_percent"]
    mean = f"{row['saves_percent']:.1f} %"
    return mean if low is None else f"{mean} ({low:.0f} to {high:.0f} %)"
