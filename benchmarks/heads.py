"""Compares drafts from layers that read a model's hidden states (MTP, EAGLE-3) with llama-server's.

    python -m benchmarks.heads speed LLAMA_BIN [--kinds qwen35 glm4_moe] [--eps 0.05 1] [--rounds 3]
    python -m benchmarks.heads accepted LLAMA_BIN [--rounds 6]

speed     the models from benchmarks/wide_heads.py; at an eps of 1, the head is useless. All servers take
          turns, llama-server with several settings. Tokens/s are measured between the first and last piece.
accepted  the tiny models from tests/kit/heads, always with drafts of three tokens

All servers continue the same texts at temperature 0. LLAMA_BIN is a folder that contains llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.reading import events, loaded, peer, posted
from benchmarks.speculation import Fixed
from benchmarks.wide_heads import N_LAYERS, wide
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.speculative import speculation
from edgechat.engine.types import ChatRequest, Delta, Finished, Sampling
from edgechat.engine.worker.worker import open_backend
from tests.engine.headed import HEADS, headed
from tests.kit import CHATML

CONTEXT = 4096
WORDS = ("apple", "bear", "cloud", "delta", "0.1", "the", "of", "und", "(a)")
OURS = {"none": "none", "mtp": "mtp"}
PEER = {
    "plain": (),
    "mtp 1": ("--spec-type", "draft-mtp", "--spec-draft-n-max", "1"),
    "mtp 3": ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3"),
    "mtp 6, sure": ("--spec-type", "draft-mtp", "--spec-draft-n-max", "6", "--spec-draft-p-min", "0.75"),
}


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, its speed, and how many tokens were drafted and accepted."""

    text: str
    rate: float
    """Tokens per second."""
    drafted: int
    accepted: int


async def ask(port: int, prompt: str, tokens: int) -> Said:
    """Have a server continue a text."""
    body = {
        "model": "default",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": True,
    }
    first = last = 0.0
    text, n_tokens, counts = "", 0, (0, 0)
    async with posted(port, "/v1/completions", body) as reader:
        async for data in events(reader):
            event = msgspec.json.decode(data)
            if usage := event.get("usage"):
                n_tokens, counts = usage["completion_tokens"], _drafts(event)
            for choice in event.get("choices", ()):
                if choice.get("text"):
                    text += choice["text"]
                    last = time.perf_counter()
                    first = first or last
    return Said(text, (n_tokens - 1) / (last - first), *counts)


def _drafts(event: dict[str, Any]) -> tuple[int, int]:
    """Return how many tokens were drafted and accepted, as reported by either server."""
    if timings := event.get("timings"):
        return timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    details = event["usage"].get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens") or 0
    return accepted + (details.get("rejected_prediction_tokens") or 0), accepted


async def compare(kind: str, eps: float, options: argparse.Namespace) -> None:
    """Ask all servers in turns; all are loaded, but only one computes at a time."""
    model = wide(kind, options.folder, eps=eps)
    rng, answers = random.Random(1), defaultdict(list)
    async with loaded(model, options.llama_bin, CONTEXT, OURS, PEER) as ports:
        for number in range(options.rounds + 1):
            prompt = " ".join(rng.choices(WORDS, k=12))
            for name, port in ports.items():
                said = await ask(port, prompt, options.tokens)
                if number:  # the first round only warms up caches and lets the servers learn
                    answers[name].append(said)
    print(f"{model.name}, {options.rounds} answers of {options.tokens} tokens")
    plain = statistics.median(one.rate for one in answers["edgechat none"])
    texts = [one.text for one in answers["edgechat none"]]
    for name, said in answers.items():
        rate = statistics.median(one.rate for one in said)
        drafted, accepted = sum(one.drafted for one in said), sum(one.accepted for one in said)
        share = f"{accepted / drafted:4.0%} of {drafted} accepted" if drafted else ""
        same = sum(one.text == text for one, text in zip(said, texts, strict=True))
        print(
            f"  {name:26} {rate:7.1f} tokens/s  {rate / plain:5.2f}  {same} texts the same  {share}",
            flush=True,
        )


async def run(options: argparse.Namespace) -> None:
    """Compare each kind with each head."""
    if options.what == "accepted":
        for kind in HEADS:
            await count(kind, options)
        return
    for kind in options.kinds:
        for eps in options.eps:
            await compare(kind, eps, options)


async def count(kind: str, options: argparse.Namespace) -> None:
    """Compare how many of the three drafted tokens are accepted."""
    plan, rng = headed(kind, n_seq_max=1, n_outputs_max=16, n_rs_seq=8), random.Random(1)
    prompts = ["".join(map(chr, rng.choices(range(33, 127), k=20 * n))) for n in range(1, options.rounds + 1)]
    template = ChatTemplate(CHATML)
    speculation.OVERHEAD = math.inf  # with a tiny model, every decision takes too long
    engine = EngineCore(open_backend(plan, None), template, controller=Fixed(3))
    texts, drafted, accepted = [], 0, 0
    for prompt in prompts:
        greedy = Sampling(temperature=0)
        engine.submit(ChatRequest(id=prompt, text=prompt, sampling=greedy, max_tokens=options.tokens))
        text = ""
        while not engine.is_idle:
            for event in engine.step():
                if isinstance(event, Delta):
                    text += event.text
                elif isinstance(event, Finished) and event.speculation:
                    drafted += event.speculation.drafted_tokens
                    accepted += event.speculation.accepted_tokens
        texts.append(text)
    engine.close()
    words = ["--spec-type", "draft-eagle3" if kind == "eagle3" else "draft-mtp", "--spec-draft-n-max", "3"]
    words += ["-md", plan.draft.model_path] if plan.draft else []
    async with peer(options.llama_bin, Path(plan.model_path), *words, slots=1, context=CONTEXT) as port:
        said = [await ask(port, prompt, options.tokens) for prompt in prompts]
    theirs = sum(one.accepted for one in said), sum(one.drafted for one in said)
    same = sum(one.text == text for one, text in zip(said, texts, strict=True))
    ours = f"edgechat {accepted}/{drafted} = {accepted / drafted:.3f}"
    print(f"{kind:12} {ours}, llama-server {theirs[0]}/{theirs[1]} = {theirs[0] / theirs[1]:.3f}, ", end="")
    print(f"{same} of {len(texts)} texts the same", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["speed", "accepted"])
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=[*N_LAYERS], default=[*N_LAYERS])
    parser.add_argument("--eps", nargs="+", type=float, default=[0.05, 1.0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
