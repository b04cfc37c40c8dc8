"""Entry point of `edgechat`, `python -m edgechat`, and every child process; imports only what each needs."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from edgechat.base.process.spawn import ROLE_FLAG

# Roles of child processes, with the modules whose main() they run.
ROLES = {
    "engine": "edgechat.engine.worker.worker",
    "bench": "edgechat.bench.speed_child",
    "quality": "edgechat.bench.quality_child",
    "quantize": "edgechat.quantize.child",
    "template": "edgechat.engine.prompt.template_child",
    "grammar": "edgechat.engine.reply.grammar_child",
    "image": "edgechat.base.images.decoding_child",
    "sound": "edgechat.base.sound.decoding_child",
    "document": "edgechat.documents.reading.child",
    "program": "edgechat.base.process.program",
    "mcp": "edgechat.tools.mcp.child",
    "page": "edgechat.base.network.html_text",
    "amx": "edgechat.native.amx_trial",
    "devices": "edgechat.native.accelerators.devices",
    "projector": "edgechat.native.multimodal.probe",
    "gpu": "edgechat.device.gpu_readings",
    "lend": "edgechat.device.remote.lending",
    "speed": "edgechat.planner.estimate.kernel_probe_child",
    "xet": "edgechat.models.hub.xet",
    "dryrun": "edgechat.planner.estimate.dry_run_child",
}


def main() -> None:
    """Run the command line, or the child whose role is named."""
    if sys.argv[1:2] == [ROLE_FLAG]:
        role = ROLES.get("".join(sys.argv[2:3]))
        if role is None:
            sys.exit(f"{ROLE_FLAG} is how edgechat starts processes of its own; it has no such one.")
        # Else numpy's BLAS starts a thread for each core: 30 ms, and hardly a matrix is ever multiplied.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        importlib.import_module(role).main()
        return
    gc.set_threshold(50_000)  # what is imported is no garbage: to look for it takes 7 ms
    from edgechat.cli.main import run_cli

    code = run_cli()
    gc.freeze()  # what is left is not collected at the end, which takes a fifth of a short command
    sys.exit(code)


if __name__ == "__main__":
    main()
