"""The commands about this machine and the models that fit it: device, plan, pull, bench and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from click.exceptions import Exit

from edgechat.cli import completion
from edgechat.cli.declarations.engine_options import engine_model, engine_option, quant_option
from edgechat.cli.options import (
    MOST,
    adapters_of,
    anyway_option,
    backend_option,
    checked_workers,
    debug_option,
    draft_option,
    lora_option,
    no_vision_option,
    offline_option,
    runs_elsewhere,
    workers_option,
)
from edgechat.cli.parameters import Number, argument, command, option
from edgechat.settings import EngineName, RuntimeQuant


@command("device")
@option("--json", is_flag=True, help="Print one JSON object.")
@option("--refresh", is_flag=True, help="Measure the speed again instead of using the stored measurement.")
@offline_option
@debug_option
def device(json: bool, refresh: bool) -> None:
    """Show the hardware of this machine: CPU, memory, GPUs, speed, disk, and the llama.cpp build."""
    from edgechat.cli.commands import device as command

    command.run(json=json, refresh=refresh)


@command("plan", epilog="The exit code is 1 if no model fits.")
@argument(
    "models",
    nargs=-1,
    required=False,
    metavar="MODEL",
    help="Files, folders, names, or owner/repo on the hub. Default: the whole catalogue.",
    complete=completion.all_models,
)
@option("--ctx", type=Number(int, min=1, max=MOST), help="The context length that is needed, in tokens.")
@option("--min-tps", type=Number(float, min=0), help="The lowest speed to accept, in tokens per second.")
@option("--clients", type=Number(int, min=1, max=MOST), help="How many ask at the same time.")
@option(
    "--quality",
    help="The lowest quality to accept: poor, reduced, good, high, near-lossless or reference.",
    complete=completion.qualities,
)
@option("--ram", help="Plan for a machine with this much memory: 8GiB.")
@option("--vram", help="... and a GPU with this much memory: 6GiB; 0: no GPU.")
@option("--bandwidth", help="... and this memory bandwidth: 50GB/s.")
@draft_option
@lora_option
@backend_option
@engine_option
@quant_option
@no_vision_option
@workers_option
@offline_option
@option("--json", is_flag=True, help="Print JSON.")
@debug_option
def plan(
    models: tuple[str, ...],
    ctx: int | None,
    min_tps: float | None,
    clients: int | None,
    quality: str | None,
    ram: str | None,
    vram: str | None,
    bandwidth: str | None,
    draft: str | None,
    lora: tuple[str, ...],
    backend: Literal["llama.cpp", "mlx"] | None,
    engine: EngineName | None,
    quant: RuntimeQuant | None,
    no_vision: bool,
    workers: tuple[str, ...] | None,
    json: bool,
) -> None:
    """Show which models fit and how fast they would be, without downloading or loading anything."""
    from edgechat.cli.commands import plan as command
    from edgechat.cli.output.quantities import amount, quality_class, rate
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.request import PlanRequest

    if backend == "mlx" and vram is not None:
        raise click.BadParameter("a Mac's GPU shares the machine's memory; use --ram", param_hint="--vram")
    if lora and not models:
        raise click.BadParameter("requires the model that the adapter is for", param_hint="--lora")
    described = MachineDescription(
        ram=amount("--ram", ram),
        vram=amount("--vram", vram),
        bandwidth=rate(bandwidth),
        runs_mlx=backend == "mlx",
    )
    request = PlanRequest(
        context=ctx,
        min_tps=min_tps,
        clients=clients,
        quality=quality_class(quality),
        draft=draft,
        backend=backend,
        vision=not no_vision,
        adapters=adapters_of(lora),
        workers=workers,
        runtime_quant=quant,
    )
    names = [engine_model(engine, name, quant) for name in models]
    if not names and (engine is not None or quant is not None):
        raise click.BadParameter("needs a MODEL", param_hint="--engine")
    if any(map(runs_elsewhere, names)):
        from edgechat.cli.commands.servers import engine_plan

        raise Exit(engine_plan.run(names, request, described, json=json))
    raise Exit(command.run(names, request, described, json=json))


@command(
    "pull",
    epilog="If a download is interrupted, the same command resumes it. Files that are complete are not "
    "downloaded again.",
)
@argument(
    "model",
    metavar="MODEL",
    help="A name of the catalogue, owner/repo[:QUANT], or its URL.",
    complete=completion.catalogue_models,
)
@option("--quant", help="The quantization to download, such as Q5_K_M or 4bit.")
@option("--auto-quant", is_flag=True, help="Let the planner choose the quantization (the default).")
@option(
    "--draft",
    metavar="auto|none|mtp|MODEL",
    help="auto: download the catalogue's draft model too, if both fit together, it is much smaller, "
    "and the model does not draft by itself (mtp).",
    complete=completion.pulled_drafters,
)
@backend_option
@option("--revision", help="A branch, tag or commit.")
@no_vision_option
@option("--dry-run", is_flag=True, help="Show what would be downloaded, and stop.")
@option("--force", is_flag=True, help="Download the model even if it does not fit.")
@offline_option
@option("--json", is_flag=True, help="Print one JSON object at the end.")
@debug_option
def pull(
    model: str,
    quant: str | None,
    auto_quant: bool,
    draft: str | None,
    backend: Literal["llama.cpp", "mlx"] | None,
    revision: str | None,
    no_vision: bool,
    dry_run: bool,
    force: bool,
    json: bool,
) -> None:
    """Download a model in the best quantization for this machine, into the hub's cache."""
    from edgechat.cli.commands import pull as command

    if quant and auto_quant:
        raise click.BadParameter("cannot be used together with --auto-quant", param_hint="--quant")
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


@command("bench")
@argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL",
    help="A GGUF file, an MLX folder, or a name shown by `edgechat list`; several with --quality.",
    complete=completion.local_models,
)
@option(
    "--ctx",
    type=Number(int, min=512, max=MOST),
    help="Context length, in tokens; with --quality, the tokens of a chunk (512).",
)
@draft_option
@backend_option
@workers_option
@option(
    "--rounds",
    type=Number(int, min=1, max=100),
    default=5,
    help="How many times each way of decoding is measured.",
)
@option("--tokens", type=Number(int, min=8, max=1024), default=48, help="Tokens generated in each round.")
@option(
    "--quality",
    is_flag=True,
    help="Measure what quantizations lose instead: perplexity, and the divergence from the most "
    "exact file of the same model.",
)
@option(
    "--against",
    metavar="QUANT|MODEL",
    help="With --quality: what to compare with.",
    complete=completion.local_models,
)
@option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: the text to predict. Default: one in many languages, with code and chats.",
    complete=completion.paths,
)
@option(
    "--chunks",
    type=Number(int, min=0, max=MOST),
    help="With --quality: how much of the text; 0 for all. Default: 64.",
)
@option("--cache-type", metavar="q8_0,q4_0", help="With --quality: types of KV cache to measure beside f16.")
@option(
    "--base-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: compare with predictions in a file, by --save-base or llama-perplexity.",
    complete=completion.paths,
)
@option(
    "--save-base",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: store the predictions of the base, or of the only model, in a file.",
    complete=completion.paths,
)
@option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw the results as a PNG file; with --quality SVG too, or - for the terminal.",
    complete=completion.paths,
)
@option("--json", is_flag=True, help="Print one JSON object.")
@anyway_option
@offline_option
@debug_option
def bench(
    models: tuple[str, ...],
    ctx: int | None,
    draft: str | None,
    backend: Literal["llama.cpp", "mlx"] | None,
    workers: tuple[str, ...] | None,
    rounds: int,
    tokens: int,
    quality: bool,
    against: str | None,
    text: Path | None,
    chunks: int | None,
    cache_type: str | None,
    base_file: Path | None,
    save_base: Path | None,
    plot: Path | None,
    json: bool,
    load_anyway: bool,
) -> None:
    """Measure a model on this machine: speed, memory and drafts, or what its quantizations lose."""
    from edgechat.planner.request import PlanRequest

    # Only text is measured, so nothing else is loaded.
    request = PlanRequest(draft=draft, backend=backend, vision=False, workers=workers, anyway=load_anyway)
    if quality:
        from edgechat.cli.bench.quality import report
        from edgechat.cli.bench.quality.measuring import QualityRequest
        from edgechat.cli.output.quantities import cache_types

        for name in filter(runs_elsewhere, models):
            raise click.BadParameter(f"{name} does not send what this is measured by", param_hint="--quality")
        for option, given in (("--against", against), ("--text", text), ("--save-base", save_base)):
            if base_file is not None and given is not None:
                raise click.BadParameter("cannot be used together with --base-file", param_hint=option)
        wish = QualityRequest(
            names=models,
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
            raise click.BadParameter("is of use only with --quality", param_hint=option)
    if len(models) > 1:
        raise click.BadParameter("one at a time; several with --quality", param_hint="MODEL")
    import msgspec

    from edgechat.cli.commands import bench as command

    request = msgspec.structs.replace(request, context=ctx)
    command.run(models[0], request, rounds=rounds, tokens=tokens, plot_file=plot, json=json)


@command("doctor", epilog="The exit code is 0 if no problems were found, 1 otherwise; notes do not count.")
@option(
    "workers",
    "--with",
    multiple=True,
    metavar="ssh://[USER@]HOST",
    callback=checked_workers,
    help="Look at this worker instead: whether it can be used, and how fast it and its link "
    "are; can be repeated.",
)
@option("--json", is_flag=True, help="Print one JSON object.")
@offline_option
@debug_option
def doctor(workers: tuple[str, ...] | None, json: bool) -> None:
    """Look for problems on this machine, and say how to fix them."""
    from edgechat.cli.commands import doctor as command

    raise Exit(command.run(workers or (), json=json))


@command(
    "worker",
    epilog="Prints one JSON object with the port and the devices, and serves until its standard input ends.",
)
@option(
    "--port",
    type=Number(int, min=0, max=65535),
    default=0,
    help="The port to listen on, on this machine only; 0: a free one.",
)
@option("--memory", help="The most memory to lend of each device: 8GiB. Default: all that is free.")
@debug_option
def worker(port: int, memory: str | None) -> None:
    """Lend this machine's memory to another one: `edgechat run MODEL --with ssh://HOST` there starts this."""
    from edgechat.cli.output.quantities import amount
    from edgechat.planner.placement import lending

    lending.run(port=port, memory=amount("--memory", memory))
