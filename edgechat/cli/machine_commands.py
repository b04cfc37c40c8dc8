"""The commands about this machine and what it carries: device, plan, pull, bench and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import (
    MOST,
    AnywayOption,
    BackendOption,
    DebugOption,
    DraftOption,
    ModelArgument,
    OfflineOption,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    resumed = "Stopped or cut off, the same command goes on where it was. What is here is not fetched again."
    wrong = "The exit code is 0 when nothing is wrong, 1 when something is; notes do not count."
    app.command("device")(device)
    app.command("plan", epilog="The exit code is 1 where nothing fits.")(plan)
    app.command("pull", epilog=resumed)(pull)
    app.command("bench")(bench)
    app.command("doctor", epilog=wrong)(doctor)


def device(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure the speed again, which is otherwise done once.")
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what this machine can carry: processor, memory, GPUs, speed, disk, and llama.cpp's build."""
    from edgechat.cli.commands import device as command

    raise typer.Exit(command.run(json=json, refresh=refresh))


def plan(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Files, folders, names, or owner/repo on the hub. None: the whole catalogue.",
            autocompletion=completion.all_models,
        ),
    ] = None,
    ctx: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Tokens that the context should hold.")
    ] = None,
    min_tps: Annotated[float | None, typer.Option(min=0, help="Tokens a second, at least.")] = None,
    quality: Annotated[
        str | None,
        typer.Option(
            help="poor, reduced, good, high, near-lossless or reference, at least.",
            autocompletion=completion.qualities,
        ),
    ] = None,
    ram: Annotated[str | None, typer.Option(help="Plan for a machine with so much memory: 8GiB.")] = None,
    vram: Annotated[str | None, typer.Option(help="... and such a GPU: 6GiB; 0: without one.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="... whose memory gives so much: 50GB/s.")] = None,
    draft: DraftOption = None,
    backend: BackendOption = None,
    offline: OfflineOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show what would fit and how fast it would be, before anything is downloaded or loaded."""
    from edgechat.cli.commands import plan as command
    from edgechat.cli.output.quantities import amount, rate, steps
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.request import PlanRequest

    if backend == "mlx" and vram is not None:
        raise typer.BadParameter(
            "a Mac's GPU has no memory of its own: --ram says it all", param_hint="--vram"
        )
    options = command.PlanOptions(
        models=tuple(models or ()),
        described=MachineDescription(
            ram=amount("--ram", ram),
            vram=amount("--vram", vram),
            bandwidth=rate(bandwidth),
            runs_mlx=backend == "mlx",
        ),
        request=PlanRequest(
            context=ctx, min_tps=min_tps, quality=steps(quality), draft=draft, backend=backend
        ),
        json=json,
    )
    raise typer.Exit(command.run(options))


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="A catalogue name, owner/repo[:QUANT], or its address.",
            autocompletion=completion.catalogue_models,
        ),
    ],
    quant: Annotated[str | None, typer.Option(help="The quantization: Q5_K_M, 4bit.")] = None,
    auto_quant: Annotated[
        bool, typer.Option("--auto-quant", help="Let the planner choose it, as it does by itself.")
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|MODEL",
            autocompletion=completion.pulled_drafters,
            help="auto: the catalogue's draft model too, where it fits beside and is much smaller.",
            show_default=False,
        ),
    ] = None,
    backend: BackendOption = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be downloaded.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Download it although it does not fit.")] = False,
    offline: OfflineOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    debug: DebugOption = False,
) -> None:
    """Download a model in the quantization that suits this machine, into the cache that other tools share."""
    from edgechat.cli.commands import pull as command

    if quant and auto_quant:
        raise typer.BadParameter("--quant and --auto-quant cannot both be", param_hint="--quant")
    options = command.PullOptions(
        model=model,
        quant=quant,
        draft=draft,
        backend=backend,
        revision=revision,
        dry_run=dry_run,
        force=force,
        json=json,
    )
    raise typer.Exit(command.run(options))


def bench(
    model: ModelArgument,
    ctx: Annotated[int | None, typer.Option(min=512, max=MOST, help="Tokens that the context holds.")] = None,
    draft: DraftOption = None,
    backend: BackendOption = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each way of decoding.")] = 5,
    tokens: Annotated[int, typer.Option(min=8, max=1024, help="Tokens of a reply.")] = 48,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it too, as PNG.", autocompletion=completion.paths),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    load_anyway: AnywayOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a model here: speeds, memory, and what drafts do for it, against a bare loop of llama.cpp."""
    from edgechat.cli.commands import bench as command
    from edgechat.planner.request import PlanRequest

    request = PlanRequest(context=ctx, draft=draft, backend=backend, anyway=load_anyway)
    options = command.BenchOptions(model, request, rounds=rounds, tokens=tokens, plot=plot, json=json)
    raise typer.Exit(command.run(options))


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Look for what keeps edgechat from working well here, and say what to do about it."""
    from edgechat.cli.commands import doctor as command

    raise typer.Exit(command.run(json=json))
