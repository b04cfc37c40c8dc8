"""Ask the planner which model it would choose for common machines, and write corpus/machines.toml.

$ python packaging/guide/machines.py

Assumes a memory bandwidth of 50 GB/s, as with two channels of DDR5, and for each GPU, the amount of RAM that
machines with such a GPU usually have. Run it again whenever the catalogue or the planner changes. No test can
reproduce the file, since the result depends on the speed of this machine.
"""

from __future__ import annotations

from named import CORPUS

from edgechat.planner.machine import MachineDescription
from edgechat.planner.prepare import all_models
from edgechat.planner.request import DEFAULT_REQUEST

GIB = 2**30
MEMORY = (4, 8, 16, 32, 64)
GPUS = {6: 16, 8: 16, 12: 32, 16: 32, 24: 64}
"""RAM in GB to assume for each GPU, keyed by the GPU's own memory in GB."""


def main() -> None:
    """Write the file."""
    lines = ["# Written by machines.py: what the planner takes from the catalogue for common machines.\n"]
    for ram, vram in [*((ram, 0) for ram in MEMORY), *((ram, vram) for vram, ram in GPUS.items())]:
        found = all_models(
            DEFAULT_REQUEST, MachineDescription(ram=ram * GIB, vram=vram * GIB, bandwidth=50e9)
        )
        if found.chosen is None:
            continue
        has = f"ram = {ram}\nvram = {vram}" if vram else f"ram = {ram}"
        lines.append(
            f'[[machine]]\n{has}\nmodel = "{found.chosen.variant.model}"\nquant = "{found.chosen.quant}"\n'
        )
        print(has, found.chosen.variant.model, found.chosen.quant, flush=True)
    (CORPUS / "machines.toml").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
