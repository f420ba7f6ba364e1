"""`gradtide profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error, fail_usage, writing
from gradtide.cli.options import JsonOption, QuietOption, WideOption, option
from gradtide.cli.printing import print_json, print_table, put, talk

if TYPE_CHECKING:
    from gradtide.profiling import ModelProfile

RUNS = 20
NETWORK_RUNS = 50


NETWORK_TEXT = "Measure transfers between two hosts with gloo instead, and write a table for gradtide calibrate."
OPTIMIZER_TEXT = (
    "With --device measure: also time a step of this optimizer of torch.optim, as in AdamW. Default: updates take no "
    "time."
)


def profile(  # a table of options  # noqa: PLR0913
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="Function that returns the module, as in torchvision.models:resnet50 or model.py:make.",
        ),
    ] = None,
    input_: list[str] | None = option(
        "[NAME=]SHAPE[:DTYPE]",
        "Call the module with this input, as in 32x3x224x224 or input_ids=8x128:int64.",
        None,
        "--input",
    ),
    device: str | None = option(
        "NAME", "Take times from the roofline of this device, or measure them on this machine: measure. Default: V100."
    ),
    optimizer: str | None = option("NAME", OPTIMIZER_TEXT),
    network: bool = option(None, NETWORK_TEXT, False, "--network"),
    python_path: Path | None = option("DIR", "Search MODULE in this directory first, as in --python-path ."),
    output: Path | None = option("FILE", "Write a model file.", None, "-o", "--output"),
    dag: Path | None = option("FILE", "Also write the graph of ops of a step, for gradtide order."),
    rate: str | None = option("RATE", "With --dag: receive parameters at this rate. Default: 10Gbps."),
    runs: int | None = option(
        "N",
        "With --device measure or --network: take the shortest of N times. Default: 20, and 50 for small transfers.",
        min=1,
    ),
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the layers of a PyTorch module as a model file.

    The file has the bytes and the forward and backward times of each layer, by roofline or measured. The command
    imports MODULE and calls FACTORY, which runs their code. With --optimizer it times one step of a copy of the model
    with the default settings of the optimizer, and divides this time among the layers by bytes. With --network it
    measures transfers between two hosts instead.
    """
    from gradtide import profiling as room
    from gradtide.studies.arguments import refuse

    if network:
        given = {
            "MODULE:FACTORY": target, "--input": input_, "--device": device, "--dag": dag, "--rate": rate,
            "--python-path": python_path, "--optimizer": optimizer,
        }  # fmt: skip
        with as_usage_error(ValueError):
            refuse("--network measures no module", given)
        with as_usage_error(room.ProfileError):
            room.require_torch()
            _measure_network(output, runs or NETWORK_RUNS, as_json=as_json, quiet=quiet)
        return
    with as_usage_error(room.ProfileError):
        if target is None:
            fail_usage("MODULE:FACTORY is missing: what to profile, as in torchvision.models:resnet50; or --network")
        room.require_torch()
        device = device or "V100"
        if not input_:
            fail_usage("--input is missing: what forward takes, as in --input 32x3x224x224")
        is_measured = device == room.MEASURE
        with as_usage_error(ValueError):
            refuse("without --dag nothing is received", {"--rate": rate if dag is None else None})
            timed = {"--runs": runs, "--optimizer": optimizer}
            refuse("without --device measure nothing is timed", {} if is_measured else timed)
        specs = [room.parse_input(text) for text in input_]
        say = (lambda text: None) if quiet else talk
        model = room.build(target, on_meta=not is_measured, path=python_path, say=say)
        args, kwargs = room.make_inputs(specs, room.best_device(model) if is_measured else "meta")
        how: dict[str, Any] = {"kwargs": kwargs, "device": device, "runs": runs or RUNS}
        stepped = None if optimizer is None else room.make_optimizer(optimizer, model)
        result = room.profile(model, *args, name=target.rpartition(":")[2], optimizer=stepped, **how)
        graph = None if dag is None else room.op_dag(model, *args, rate=rate or "10Gbps", **how)
    if output is not None:
        with writing(output):
            result.save(output)
    if dag is not None and graph is not None:
        with writing(dag, "--dag"):
            room.write_json(graph, dag)
    if as_json:
        print_json(result.to_dict())
        return
    _print_profile(result)
    if not quiet:
        _name_files(output, dag, graph)


def _name_files(output: Path | None, dag: Path | None, graph: dict[str, Any] | None) -> None:
    if output is not None:
        talk("", f'model file  {output}   (in a scenario: model = "{output}")')
    if graph is not None:
        recvs = sum(op["kind"] == "recv" for op in graph["ops"])
        talk(f"op graph    {dag}   ({len(graph['ops'])} ops, {recvs} of them receive a parameter)")


def _measure_network(output: Path | None, runs: int, *, as_json: bool, quiet: bool) -> None:
    from gradtide.profiling.network import network_times, save, table

    rows = network_times(runs, (lambda text: None) if quiet else talk)
    if not rows:
        return
    if output is not None:
        with writing(output):
            save(rows, output)
    if as_json:
        keys = ("bytes", "depth", "time_us")
        print_json({"schema": "gradtide.network/1", "rows": [dict(zip(keys, row, strict=True)) for row in rows]})
    elif output is None:
        put(*table(rows).splitlines())
    if output is not None and not quiet:
        talk(f"wrote {output}   (gradtide calibrate {output} --link RATE -o host.toml)")


def _print_profile(result: "ModelProfile") -> None:
    seconds = result.forward_time + result.backward_time
    rows = [
        ["model", f"{result.name}, {', '.join(result.inputs)}"],
        ["device", result.device],
        ["layers", f"{len(result.layers)} with {result.tensors} tensors"],
        ["gradients", f"{result.parameter_bytes} B ({result.parameter_bytes / 2**20:.2f} MiB)"],
        ["forward", f"{result.forward_time * 1e3:.3f} ms"],
        ["backward", f"{result.backward_time * 1e3:.3f} ms"],
        *([["update", f"{result.update_time * 1e3:.3f} ms"]] if result.update_time else []),
        ["alone", f"{result.batch / seconds:.1f} samples/s"],
    ]
    if result.explained is not None and result.step_ps is not None:
        rows.append(["explains", f"{100 * result.explained:.1f} % of a step of {result.step_ps / 1e9:.3f} ms"])
    for label, names in (("unused", result.unused), ("frozen", result.frozen), ("shared", result.shared)):
        if names:
            rows.append([label, ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")])
    print_table(["", result.title], rows)
