"""The commands about this machine and the models that fit it: device, plan, pull, bench and doctor."""

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
    EngineOption,
    LoraOption,
    NoVisionOption,
    OfflineOption,
    QuantOption,
    WorkersOption,
    adapters_of,
    checked_workers,
    engine_model,
    runs_elsewhere,
    workers_of,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    pull_epilog = (
        "If a download is interrupted, the same command resumes it. Files that are complete are not "
        "downloaded again."
    )
    doctor_epilog = "The exit code is 0 if no problems were found, 1 otherwise; notes do not count."
    worker_epilog = (
        "Prints one JSON object with the port and the devices, and serves until its standard input ends."
    )
    app.command("device")(device)
    app.command("plan", epilog="The exit code is 1 if no model fits.")(plan)
    app.command("pull", epilog=pull_epilog)(pull)
    app.command("bench")(bench)
    app.command("doctor", epilog=doctor_epilog)(doctor)
    app.command("worker", epilog=worker_epilog)(worker)


def device(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Measure the speed again instead of using the stored measurement."),
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the hardware of this machine: CPU, memory, GPUs, speed, disk, and the llama.cpp build."""
    from edgechat.cli.commands import device as command

    command.run(json=json, refresh=refresh)


def plan(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Files, folders, names, or owner/repo on the hub. Default: the whole catalogue.",
            autocompletion=completion.all_models,
        ),
    ] = None,
    ctx: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="The context length that is needed, in tokens.")
    ] = None,
    min_tps: Annotated[
        float | None, typer.Option(min=0, help="The lowest speed to accept, in tokens per second.")
    ] = None,
    quality: Annotated[
        str | None,
        typer.Option(
            help="The lowest quality to accept: poor, reduced, good, high, near-lossless or reference.",
            autocompletion=completion.qualities,
        ),
    ] = None,
    ram: Annotated[str | None, typer.Option(help="Plan for a machine with this much memory: 8GiB.")] = None,
    vram: Annotated[
        str | None, typer.Option(help="... and a GPU with this much memory: 6GiB; 0: no GPU.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(help="... and this memory bandwidth: 50GB/s.")] = None,
    draft: DraftOption = None,
    lora: LoraOption = None,
    backend: BackendOption = None,
    engine: EngineOption = None,
    quant: QuantOption = None,
    no_vision: NoVisionOption = False,
    workers: WorkersOption = None,
    offline: OfflineOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show which models fit and how fast they would be, without downloading or loading anything."""
    from edgechat.cli.commands import plan as command
    from edgechat.cli.output.quantities import amount, quality_class, rate
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.request import PlanRequest

    if backend == "mlx" and vram is not None:
        raise typer.BadParameter("a Mac's GPU shares the machine's memory; use --ram", param_hint="--vram")
    if lora and not models:
        raise typer.BadParameter("requires the model that the adapter is for", param_hint="--lora")
    described = MachineDescription(
        ram=amount("--ram", ram),
        vram=amount("--vram", vram),
        bandwidth=rate(bandwidth),
        runs_mlx=backend == "mlx",
    )
    request = PlanRequest(
        context=ctx,
        min_tps=min_tps,
        quality=quality_class(quality),
        draft=draft,
        backend=backend,
        vision=not no_vision,
        adapters=adapters_of(lora),
        workers=workers_of(workers),
        runtime_quant=quant,
    )
    names = [engine_model(engine, name, quant) for name in models or ()]
    if not names and (engine is not None or quant is not None):
        raise typer.BadParameter("needs a MODEL", param_hint="--engine")
    if any(map(runs_elsewhere, names)):
        from edgechat.cli.commands.servers import engine_plan

        raise typer.Exit(engine_plan.run(names, request, described, json=json))
    raise typer.Exit(command.run(names, request, described, json=json))


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name of the catalogue, owner/repo[:QUANT], or its URL.",
            autocompletion=completion.catalogue_models,
        ),
    ],
    quant: Annotated[
        str | None, typer.Option(help="The quantization to download, such as Q5_K_M or 4bit.")
    ] = None,
    auto_quant: Annotated[
        bool, typer.Option("--auto-quant", help="Let the planner choose the quantization (the default).")
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|mtp|MODEL",
            autocompletion=completion.pulled_drafters,
            help="auto: download the catalogue's draft model too, if both fit together, it is much smaller, "
            "and the model does not draft by itself (mtp).",
            show_default=False,
        ),
    ] = None,
    backend: BackendOption = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    no_vision: NoVisionOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be downloaded, and stop.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Download the model even if it does not fit.")
    ] = False,
    offline: OfflineOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    debug: DebugOption = False,
) -> None:
    """Download a model in the best quantization for this machine, into the hub's cache."""
    from edgechat.cli.commands import pull as command

    if quant and auto_quant:
        raise typer.BadParameter("cannot be used together with --auto-quant", param_hint="--quant")
    command.run(
        model,
        quant=quant,
        draft=draft,
        backend=backend,
        revision=revision,
        vision=not no_vision,
        dry_run=dry_run,
        force=force,
        json=json,
    )


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, an MLX folder, or a name shown by `edgechat list`; several with --quality.",
            autocompletion=completion.local_models,
        ),
    ],
    ctx: Annotated[
        int | None,
        typer.Option(
            min=512, max=MOST, help="Context length, in tokens; with --quality, the tokens of a chunk (512)."
        ),
    ] = None,
    draft: DraftOption = None,
    backend: BackendOption = None,
    workers: WorkersOption = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="How many times each way of decoding is measured.")
    ] = 5,
    tokens: Annotated[int, typer.Option(min=8, max=1024, help="Tokens generated in each round.")] = 48,
    quality: Annotated[
        bool,
        typer.Option(
            "--quality",
            help="Measure what quantizations lose instead: perplexity, and the divergence from the most "
            "exact file of the same model.",
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="QUANT|MODEL",
            help="With --quality: what to compare with.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --quality: the text to predict. Default: one in many languages, with code and chats.",
            autocompletion=completion.paths,
        ),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help="With --quality: how much of the text; 0 for all. Default: 64."),
    ] = None,
    cache_type: Annotated[
        str | None,
        typer.Option(metavar="q8_0,q4_0", help="With --quality: types of KV cache to measure beside f16."),
    ] = None,
    base_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --quality: compare with predictions in a file, by --save-base or llama-perplexity.",
            autocompletion=completion.paths,
        ),
    ] = None,
    save_base: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --quality: store the predictions of the base, or of the only model, in a file.",
            autocompletion=completion.paths,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the results as a PNG file; with --quality SVG too, or - for the terminal.",
            autocompletion=completion.paths,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    load_anyway: AnywayOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a model on this machine: speed, memory and drafts, or what its quantizations lose."""
    from edgechat.planner.request import PlanRequest

    # Only text is measured, so nothing else is loaded.
    request = PlanRequest(
        draft=draft, backend=backend, vision=False, workers=workers_of(workers), anyway=load_anyway
    )
    if quality:
        from edgechat.cli.bench.quality import report
        from edgechat.cli.bench.quality.measuring import QualityRequest
        from edgechat.cli.output.quantities import cache_types

        for name in filter(runs_elsewhere, models):
            raise typer.BadParameter(f"{name} does not send what this is measured by", param_hint="--quality")
        for option, given in (("--against", against), ("--text", text), ("--save-base", save_base)):
            if base_file is not None and given is not None:
                raise typer.BadParameter("cannot be used together with --base-file", param_hint=option)
        wish = QualityRequest(
            names=tuple(models),
            plan=request,
            n_ctx=512 if ctx is None else ctx,
            n_chunks=64 if chunks is None else chunks,
            against=against,
            text=text,
            cache_types=cache_types(cache_type),
            base_file=base_file,
            save_base=save_base,
        )
        report.run(wish, plot_file=plot, json=json)
        return
    needing = {
        "--against": against,
        "--text": text,
        "--chunks": chunks,
        "--cache-type": cache_type,
        "--base-file": base_file,
        "--save-base": save_base,
    }
    for option, value in needing.items():
        if value is not None:
            raise typer.BadParameter("is of use only with --quality", param_hint=option)
    if len(models) > 1:
        raise typer.BadParameter("one at a time; several with --quality", param_hint="MODEL")
    import msgspec

    from edgechat.cli.commands import bench as command

    request = msgspec.structs.replace(request, context=ctx)
    command.run(models[0], request, rounds=rounds, tokens=tokens, plot_file=plot, json=json)


def doctor(
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="ssh://[USER@]HOST",
            callback=checked_workers,
            help="Look at this worker instead: whether it can be used, and how fast it and its link "
            "are; can be repeated.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Look for problems on this machine, and say how to fix them."""
    from edgechat.cli.commands import doctor as command

    raise typer.Exit(command.run(workers_of(workers) or (), json=json))


def worker(
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port to listen on, on this machine only; 0: a free one."),
    ] = 0,
    memory: Annotated[
        str | None,
        typer.Option(help="The most memory to lend of each device: 8GiB. Default: all that is free."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Lend this machine's memory to another one: `edgechat run MODEL --with ssh://HOST` there starts this."""
    from edgechat.cli.output.quantities import amount
    from edgechat.planner.placement import lending

    lending.run(port=port, memory=amount("--memory", memory))
