"""Entry point for `edgechat`, `python -m edgechat` and child processes. Imports only what each one needs."""

from __future__ import annotations

import gc
import importlib
import os
import sys

from edgechat.base.process.spawn import ROLE_FLAG

# Roles of child processes, mapped to the modules whose main() they run.
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
    """Run the command line, or a child process in the given role."""
    if sys.argv[1:2] == [ROLE_FLAG]:
        role = ROLES.get("".join(sys.argv[2:3]))
        if role is None:
            sys.exit(f"{ROLE_FLAG} starts edgechat's own child processes; there is no such role.")
        # Otherwise numpy's BLAS starts one thread per core, which takes 30 ms and hardly ever helps.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        importlib.import_module(role).main()
        return
    gc.set_threshold(50_000)  # imported objects are not garbage; scanning them takes 7 ms
    from edgechat.cli.main import run_cli

    code = run_cli()
    gc.freeze()  # skip the final collection, which accounts for a fifth of a short command's run time
    sys.exit(code)


if __name__ == "__main__":
    main()
