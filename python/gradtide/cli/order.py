"""`gradtide order`."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.ends import as_usage_error, fail_usage, writing
from gradtide.cli.options import OUTPUT, JsonOption, Limited, MaxInputOption, WideOption, option
from gradtide.cli.printing import json_text, print_answer, print_json, print_table, say


def order(  # noqa: PLR0913 - options of the command
    dag: Annotated[
        str,
        typer.Argument(
            metavar="DAG", help="A graph of ops (.json), or the name of a built-in one: gradtide presets graphs."
        ),
    ],
    scheduler: str = option(
        "NAME",
        "Order transfers by layer, tic, tac, tac_folded, random, arbitrary or optimal, or as in an order file (.json).",
        "optimal",
    ),
    ties: str | None = option(
        "RULE",
        "Break ties of TAC by id, or as the released code of TicTac does (upstream). Default: id.",
    ),
    seed: int | None = option("N", "Set the seed of random, arbitrary and optimal. Default: 0.", min=0),
    device: str | None = option("NAME", "Built-in DAG: compute on this device. Default: K80."),
    batch: int | None = option("N", "Built-in DAG: set the samples of a mini-batch. Default: the paper's.", min=1),
    task: str | None = option("NAME", "Built-in DAG: train or inference. Default: train."),
    rate: str | None = option("RATE", "Built-in DAG: receive parameters at this rate. Default: 10Gbps."),
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the order as a file for --scheduler.", rich_help_panel=OUTPUT
        ),
    ] = None,
    max_input: MaxInputOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    *,
    limited: Limited,
) -> None:
    """Choose the order in which a worker receives parameters.

    Also says how much longer the iteration takes than with the best order.
    """
    from gradtide import words
    from gradtide.files import write_whole
    from gradtide.studies import graph
    from gradtide.studies import order as study

    for flag, given, schedulers in (
        ("--ties", ties, study.WITH_TIES),
        ("--seed", seed, study.WITH_SEED),
    ):
        if given is not None and scheduler not in schedulers:
            fail_usage(f"{flag} changes nothing of the scheduler {scheduler}; it is for {' and '.join(schedulers)}")
    with as_usage_error(ValueError):
        loaded = graph.find_dag(dag, device, batch, task, rate)
        result = study.order(loaded, scheduler, ties=ties or "id", seed=seed or 0)
    if output is not None:
        with writing(output):
            write_whole(output, f"{json_text(result.to_dict())}\n".encode())
    if as_json:
        print_json(result.to_dict())
        return
    ops = {op.id: op for op in loaded.ops}
    shown = list(result.priority.items())[:MAX_TRANSFERS_SHOWN]
    rows = [[rank, op, ops[op].name, words.ticks(ops[op].time, loaded.time_unit)] for op, rank in shown]
    print_table(["priority", "op", "name", "time"], rows)
    if len(shown) < len(result.priority):
        say(f"and {len(result.priority) - len(shown)} more; --json has them all")
    print_answer(result.to_dict())


MAX_TRANSFERS_SHOWN = 20
