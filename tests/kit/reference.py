"""A slow, plain runner on top of llama.cpp's low-level API, to compare edgechat's own with.

Nothing is reused between calls unless the test asks for it, and return codes are plain numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import numpy.typing as npt

from edgechat.native import ggml

Logits = npt.NDArray[np.float32]

log: list[str] = []
"""llama.cpp's log since the last load."""

_listener = api.llama_log_callback(lambda level, text, data: log.append(text.decode(errors="replace")))


class Reference:
    """A loaded model with one context, both freed on exit; on the CPU, one thread, no flash attention.

    `context` sets fields of llama_context_params: `Reference(path, type_k=0, type_v=0)` for an F32 cache.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 1024,
        n_seq_max: int = 4,
        load_mtp: bool = False,
        of: Reference | None = None,
        **context: Any,
    ) -> None:
        """load_mtp: also load the layers that draft. of: share that one's model; it must live longer."""
        self._owns_model = of is None
        self.model = of.model if of else self._load(path, load_mtp)
        self.ctx = self._context(n_ctx=n_ctx, n_seq_max=n_seq_max, **context)
        self.memory = api.llama_get_memory(self.ctx)
        self.vocab = api.llama_model_get_vocab(self.model)
        self.n_vocab: int = api.llama_vocab_n_tokens(self.vocab)

    def _load(self, path: Path, load_mtp: bool) -> Any:
        api.llama_log_set(_listener, None)
        log.clear()
        ggml.start()
        params = api.llama_model_default_params()
        params.load_mtp = load_mtp
        params.n_gpu_layers = 0
        # An empty list: without one, llama.cpp would use every device that this process knows.
        self._devices = (ctypes.c_void_p * 1)(None)
        params.devices = ctypes.addressof(self._devices)
        model = api.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        return model

    def _context(self, **context: Any) -> Any:
        params = api.llama_context_default_params()
        wanted = {"n_batch": 512, "n_ubatch": 512, "n_threads": 1, "n_threads_batch": 1, "kv_unified": True}
        wanted |= {"swa_full": False, "flash_attn_type": 0, **context}
        for name, value in wanted.items():
            setattr(params, name, value)
        ctx = api.llama_init_from_model(self.model, params)
        if not ctx:
            self._free_model()
            raise RuntimeError(f"llama.cpp makes no context with {wanted}")
        return ctx

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the context, and the model unless it is shared."""
        api.llama_free(self.ctx)
        self._free_model()

    def _free_model(self) -> None:
        if self._owns_model:
            api.llama_model_free(self.model)

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Return the ids of a text."""
        raw = text.encode()
        ids = (api.llama_token * (len(raw) + 8))()
        n = api.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), bos, special)
        return list(ids[:n])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token."""
        room = bytearray(256)
        buffer = (ctypes.c_char * len(room)).from_buffer(room)
        n = api.llama_token_to_piece(self.vocab, token, buffer, len(room), 0, special)
        return bytes(room[:n])

    def ends(self, token: int) -> bool:
        """Return True if a token ends generation."""
        return bool(api.llama_vocab_is_eog(self.vocab, token))

    def decode(self, tokens: Sequence[int], *, start: int = 0, seq: int = 0) -> Logits:
        """Decode tokens in one batch; return the logits of each, float32 [len(tokens), n_vocab]."""
        batch = api.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, token in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            code = api.llama_decode(self.ctx, batch)
            if code:
                raise RuntimeError(f"llama_decode: {code}")
            rows = api.llama_get_logits(self.ctx)
            return np.ctypeslib.as_array(rows, (len(tokens), self.n_vocab)).copy()
        finally:
            api.llama_batch_free(batch)

    def clear(self) -> None:
        """Clear the cache."""
        api.llama_memory_clear(self.memory, True)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return n greedy tokens after the prompt, from an empty cache."""
        self.clear()
        out: list[int] = []
        row = self.decode(prompt)[-1]
        while True:
            out.append(int(row.argmax()))
            if len(out) == n:
                return out
            row = self.decode(out[-1:], start=len(prompt) + len(out) - 1)[-1]
