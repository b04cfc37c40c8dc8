"""Train the guide from nothing: corpus -> tokenizer -> weights, in about ten minutes on two cores.

    python packaging/guide/train.py --steps 850
    python packaging/guide/train.py --steps 300 --start build/guide     (questions in plain words)
    python packaging/guide/train.py --steps 2000 --draft                (the guide's draft)

Everything is drawn from seeded generators and torch runs its deterministic kernels, so the same machine
makes the same weights. The result goes to build/guide/ or build/guide-draft/, for export.py.
"""

import argparse
import itertools
import json
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import numpy
import torch
from corpus import Conversation, Corpus, conversations, questions
from model import Model
from shape import DRAFT, GUIDE, Config
from tokenizer import END, END_OF_TEXT, Tokenizer
from torch import Tensor
from torch.nn import functional as F

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
SHIPPED = ROOT / "edgechat" / "data" / "guide.gguf"


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained. `steps` batches of about `batch_tokens` tokens, padding counted."""

    steps: int = 850
    batch_tokens: int = 4096
    longest: int = 1024
    muon_rate: float = 0.004
    adam_rate: float = 2e-3
    weight_decay: float = 0.05
    dropout: float = 0.0
    recitation: float = 0.2  # what a token counts that decides nothing
    whole: float = 0.25  # the share of conversations that are not cut after their last decision
    single: float = 0.65  # the share of steps that see single questions only
    bpe_dropout: float = 0.1
    warmup: float = 0.02
    cooldown: float = 0.5
    tokenizer_conversations: int = 6000
    threads: int = 2
    seed: int = 1
    start: Path | None = None  # weights and tokenizer to go on from
    vocabulary: Path | None = None  # a GGUF file whose tokenizer to take
    plain: float = 0.0  # the share of questions in their plainest words


def train_tokenizer(corpus: Corpus, vocab: int, training: Training) -> Tokenizer:
    """A vocabulary for what is asked and answered; answers are few, so they count several times over."""
    source = conversations(corpus, random.Random(training.seed))
    texts: list[str] = []
    for chat in itertools.islice(source, training.tokenizer_conversations):
        texts += [turn.ask for turn in chat.turns]
    for intent in (*corpus.intents.values(), *corpus.groups.values()):
        texts += [intent.answer] * 20
    return Tokenizer.train(texts, vocab)


def tokenizer_for(corpus: Corpus, vocab: int, training: Training) -> Tokenizer:
    """The tokenizer that the training goes on with, or a new one."""
    if training.start is not None:
        return Tokenizer.load(training.start / "tokenizer.json")
    if training.vocabulary is not None:
        return Tokenizer.of_gguf(training.vocabulary)
    return train_tokenizer(corpus, vocab, training)


class Decisions:
    """Which tokens of an answer choose between answers; the others follow from those before them.

    An answer of fifty tokens makes two or three decisions. Recitation is learned at once, so the decisions
    carry the loss, and in most rows the last answer ends after its last decision: that is what makes ten
    minutes enough.
    """

    def __init__(self, answers: Iterable[list[int]]) -> None:
        self._next: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for ids in answers:
            for at, token in enumerate(ids):
                self._next[tuple(ids[:at])].add(token)

    def of(self, ids: list[int]) -> list[bool]:
        """For each token of an answer, whether another one could have stood there."""
        return [len(self._next[tuple(ids[:at])]) > 1 for at in range(len(ids))]


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation for training: ids, and how much each counts in the loss (0: somebody else said it)."""

    ids: list[int]
    weights: list[float]


def row(
    chat: Conversation, tokenizer: Tokenizer, decisions: Decisions, training: Training, rng: random.Random
) -> Row:
    """Render a conversation, weigh its tokens, and mostly cut it after its last decision."""
    ids, own = tokenizer.render(chat, training.bpe_dropout, rng)
    weights = [0.0] * len(ids)
    last = len(ids)
    at = 0
    while at < len(ids):
        end = at
        while own[end]:
            end += 1
        for place, decides in zip(range(at, end), decisions.of(ids[at:end]), strict=True):
            weights[place] = 1.0 if decides else training.recitation
            last = place + 1 if decides else last
        at = end + 1
    length = min(len(ids) if rng.random() < training.whole else last, training.longest)
    return Row(ids[:length], weights[:length])


def batches(corpus: Corpus, tokenizer: Tokenizer, training: Training) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (ids, weights), each (rows, length): rows of like length together, so that little is padding.

    Single questions come first, whole conversations when those are known: a turn in the middle of a long
    conversation costs three times as much to learn from.
    """
    rng = random.Random(training.seed + 1)
    ends = [tokenizer.encode(i.answer) for i in (*corpus.intents.values(), *corpus.groups.values())]
    decisions = Decisions([*ids, tokenizer.special(END)] for ids in ends)
    pad = tokenizer.special(END_OF_TEXT)
    made = 0
    while True:
        source = questions if made < training.steps * training.single else conversations
        chats = itertools.islice(source(corpus, rng), 512)
        rows = sorted(
            (row(chat, tokenizer, decisions, training, rng) for chat in chats), key=lambda r: len(r.ids)
        )
        groups: list[list[Row]] = [[]]
        for one in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(one.ids) > training.batch_tokens:
                groups.append([])
            groups[-1].append(one)
        rng.shuffle(groups)
        for group in groups:
            length = max(len(one.ids) for one in group)
            ids = torch.tensor([one.ids + [pad] * (length - len(one.ids)) for one in group])
            weights = torch.tensor([one.weights + [0.0] * (length - len(one.weights)) for one in group])
            made += 1
            yield ids, weights


def rate(step: int, training: Training) -> float:
    """The share of the full learning rate at a step: up, flat, and down to nothing in a line."""
    done = step / training.steps
    return min(1.0, done / training.warmup + 1e-3, (1.0 - done) / training.cooldown)


def optimizers(model: Model, training: Training) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    inner = [p for p in model.blk.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is q for q in inner)]
    return [
        torch.optim.Muon(
            inner, lr=training.muon_rate, weight_decay=training.weight_decay, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(others, lr=training.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(config: Config, training: Training) -> tuple[Model, Tokenizer]:
    """Make the tokenizer and the model."""
    torch.manual_seed(training.seed)
    torch.set_num_threads(training.threads)
    torch.use_deterministic_algorithms(True)
    corpus = Corpus(GUIDE.size, training.plain)
    model = Model(config)
    tokenizer = tokenizer_for(corpus, config.vocab, training)
    if training.start is not None:
        known = numpy.load(training.start / "weights.npz")
        model.load_state_dict({name: torch.from_numpy(known[name]) for name in known})
    steppers = optimizers(model, training)
    full = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    started, seen = time.monotonic(), 0
    recent: deque[float] = deque(maxlen=50)
    for step, (ids, weights) in enumerate(
        itertools.islice(batches(corpus, tokenizer, training), training.steps)
    ):
        for stepper, rates in zip(steppers, full, strict=True):
            for group, most in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = most * rate(step, training)
        # The place before each of the guide's own tokens predicts it.
        wanted = weights[:, 1:] > 0
        logits = model(ids[:, :-1], wanted, training.dropout)
        losses = F.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
        loss = (losses * weights[:, 1:][wanted]).sum() / weights.sum()
        loss.backward()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        seen += ids.numel()
        recent.append(loss.item())
        if step % 50 == 0 or step == training.steps - 1:
            took = time.monotonic() - started
            print(
                f"step {step:5d}  loss {mean(recent):.4f}  {seen / took:6.0f} tokens/s  {took:4.0f} s",
                flush=True,
            )
    return model, tokenizer


def main() -> None:
    """Train and write weights, tokenizer and config to build/guide/ or build/guide-draft/."""
    default = Training()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=default.steps)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument("--out", type=Path)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--start", type=Path, help="go on from these weights, with plainer questions")
    kind.add_argument("--draft", action="store_true", help="train the draft of the guide that ships")
    options = parser.parse_args()
    config = DRAFT if options.draft else GUIDE
    training = replace(default, steps=options.steps, threads=options.threads)
    if options.start:
        # Slower, with other questions, and conversations from the middle on.
        training = replace(
            training, start=options.start, plain=0.35, seed=11, single=0.5, muon_rate=0.002, adam_rate=1e-3
        )
    if options.draft:
        # It is asked for every token, so every token counts alike, and no conversation is cut.
        training = replace(training, vocabulary=SHIPPED, recitation=1.0, whole=1.0, single=0.5, plain=0.2)
    print(f"{config.parameters:,} parameters", flush=True)
    model, tokenizer = train(config, training)
    out = options.out or BUILD / ("guide-draft" if options.draft else "guide")
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    numpy.savez(out / "weights.npz", **weights)
    tokenizer.save(out / "tokenizer.json")
    (out / "config.json").write_text(json.dumps(asdict(config)), encoding="utf-8")


if __name__ == "__main__":
    main()
