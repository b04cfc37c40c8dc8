"""The LoadPlan: everything a load needs, decided before the load, with the reasons."""

from __future__ import annotations

from typing import Literal

from edgechat.native.buffers import Buffer
from edgechat.native.params import LoadParams
from edgechat.settings import SamplingDefaults

BackendName = Literal["llama.cpp", "scripted"]


class LoadPlan(LoadParams, frozen=True, kw_only=True):
    """How a model is loaded. Crosses the pipe to the worker, and is shown to people as it is.

    Counts are tokens, sequences or layers; sizes are bytes.
    """

    model_path: str
    model_name: str
    backend: BackendName = "llama.cpp"
    n_layers: int = 0
    weights_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0
    buffers: tuple[Buffer, ...] = ()
    """The same by type of buffer, as llama.cpp's own allocator says; empty where the sizes are estimated."""
    budget_bytes: int = 0
    """Memory that was free when the plan was made; what the plan needs stays under it."""
    sampling: SamplingDefaults = SamplingDefaults()
    """What settings.toml says, and below that what the model's makers recommend."""
    reasons: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """What the load takes altogether."""
        return self.weights_bytes + self.cache_bytes + self.compute_bytes
