"""Train the guide from scratch: corpus -> tokenizer -> weights, in an hour on two cores.

    python packaging/guide/train.py                        (the guide)
    python packaging/guide/train.py --start DIR --out DIR  (continue gently from a finished run)
    python packaging/guide/train.py --start GGUF           (continue gently from an exported guide)
    python packaging/guide/train.py --draft                (the draft for the guide in edgechat/base/data)

All random numbers come from seeded generators and torch uses its deterministic kernels, so the same machine
always produces the same weights. An interrupted run resumes from its last checkpoint (there is one every
hundred steps) and produces the same result; if the corpus or shape has changed, it starts from scratch.
Output: build/guide/ or build/guide-draft/.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import gguf
import numpy
import torch
from corpus import Conversation, Corpus, conversations, questions
from model import Model, fading
from places import BUILD, DATA
from shape import DRAFT, GUIDE, Config
from tokenizer import END, END_OF_TEXT, Tokenizer
from torch import Tensor
from torch.nn import functional as F

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained: `steps` batches of about `batch_tokens` tokens, including padding."""

    steps: int = 4300
    batch_tokens: int = 3072
    longest: int = 1024
    muon_rate: float = 0.004
    adam_rate: float = 2e-3
    embedding_rate: float = 2e-4  # low: a higher rate erases the bag-of-words start in a hundred steps
    weight_decay: float = 0.05
    dropout: float = 0.05
    recitation: float = 0.2  # weight of tokens that follow from those before them
    understanding: float = 1.0  # weight of the loss for predicting the answer halfway up the layers
    bag_questions: int = 150_000  # for training the embedding as a bag of words; 0 to skip that
    bag_conversations: int = 8_000
    bag_tokens: int = 128  # maximum per bag
    whole: float = 0.2  # fraction of conversations that are not cut after their last decision
    conversations: int = 120  # per chunk of batches
    questions: int = 1400  # single questions, per chunk
    polished: float = 0.88  # fraction of steps after which the next two fields apply
    polished_recitation: float = 0.6
    polished_whole: float = 0.6
    bpe_dropout: float = 0.1
    warmup: float = 0.02
    cooldown: float = 0.5
    tokenizer_conversations: int = 12000
    threads: int = 2
    seed: int = 1
    plain: float = 0.2  # fraction of questions in their plainest wording
    more_of: str = ""  # fingerprint of the run that provides the initial weights


OF_GUIDE = Training()
LENGTHS = (16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
# For continuing a finished run: what the lower half of the layers knows must now be put into words.
MORE_OF_GUIDE = Training(
    steps=1300,
    muon_rate=0.002,
    adam_rate=1e-3,
    embedding_rate=1e-4,
    dropout=0.0,
    understanding=0.15,
    polished=0.75,
    cooldown=1.0,
    plain=0.3,
    seed=4,
)
# A draft has to predict every token, so all tokens count equally and no conversation is cut.
OF_DRAFT = Training(
    steps=1500,
    embedding_rate=2e-3,
    dropout=0.0,
    recitation=1.0,
    whole=1.0,
    polished=1.0,
    understanding=0.0,
    bag_questions=0,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the endless series of batches: chunk, first step of the chunk, batches taken from it."""

    chunk: int = 0
    began: int = 0
    taken: int = 0

    @property
    def step(self) -> int:
        """Total number of batches taken."""
        return self.began + self.taken


def train_tokenizer(corpus: Corpus, vocab: int, training: Training) -> Tokenizer:
    """Train a tokenizer on questions and answers. Answers are repeated, since there are only a few."""
    source = conversations(corpus, random.Random(training.seed))
    texts: list[str] = []
    for chat in itertools.islice(source, training.tokenizer_conversations):
        texts += [turn.ask for turn in chat.turns]
    for intent in (*corpus.intents.values(), *corpus.groups.values()):
        texts += [intent.answer] * 20
    return Tokenizer.train(texts, vocab)


class Decisions:
    """Finds the tokens at which answers diverge; all other tokens follow from the ones before them.

    An answer of fifty tokens contains two or three such decisions. The model soon learns to recite the rest,
    so the loss concentrates on the decisions, and most rows end after the last one. That is why an hour is
    enough.
    """

    def __init__(self, answers: Iterable[list[int]]) -> None:
        self._next: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for ids in answers:
            for at, token in enumerate(ids):
                self._next[tuple(ids[:at])].add(token)

    def of(self, ids: list[int]) -> list[bool]:
        """Return, for each token of an answer, whether some other answer has a different token there."""
        return [len(self._next[tuple(ids[:at])]) > 1 for at in range(len(ids))]


@dataclass(frozen=True, slots=True)
class Row:
    """A conversation for training: its ids, and the weight of each in the loss (0 for the user's tokens)."""

    ids: list[int]
    weights: list[float]
    asked: list[tuple[int, int]]
    """The position at which each question ends, and the number of the answer that follows."""


def row(
    chat: Conversation,
    tokenizer: Tokenizer,
    decisions: Decisions,
    answers: dict[str, int],
    training: Training,
    rng: random.Random,
) -> Row:
    """Render a conversation, weight its tokens, and usually cut it after its last decision."""
    ids, own = tokenizer.render(chat, training.bpe_dropout, rng)
    weights = [0.0] * len(ids)
    last = len(ids)
    asked: list[tuple[int, int]] = []
    at = 0
    while at < len(ids):
        end = at
        while own[end]:
            end += 1
        if end > at:
            asked.append((at - 1, answers[chat.turns[len(asked)].answer]))
        for place, decides in zip(range(at, end), decisions.of(ids[at:end]), strict=True):
            weights[place] = 1.0 if decides else training.recitation
            last = place + 1 if decides else last
        at = end + 1
    length = min(len(ids) if rng.random() < training.whole else last, training.longest)
    return Row(ids[:length], weights[:length], [one for one in asked if one[0] < length - 1])


def some_of_each(corpus: Corpus, rng: random.Random, single: int, whole: int) -> Iterator[Conversation]:
    """Yield `single` questions, then `whole` conversations."""
    yield from itertools.islice(questions(corpus, rng), single)
    yield from itertools.islice(conversations(corpus, rng), whole)


def rows(
    chats: Iterable[Conversation],
    corpus: Corpus,
    tokenizer: Tokenizer,
    training: Training,
    rng: random.Random,
) -> Iterator[Row]:
    """Yield a row for each conversation."""
    answers = numbered(corpus)
    ends = [tokenizer.encode(answer) for answer in answers]
    decisions = Decisions([*ids, tokenizer.special(END)] for ids in ends)
    for chat in chats:
        yield row(chat, tokenizer, decisions, answers, training, rng)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids and weights, each (rows, length). `asked` (n, 2): where a question ends, and its answer's number.

    These positions are indices into all rows laid end to end.
    """

    ids: Tensor
    weights: Tensor
    asked: Tensor


def numbered(corpus: Corpus) -> dict[str, int]:
    """Return a number for every answer."""
    return {answer: at for at, answer in enumerate(dict.fromkeys(corpus.answers.values()))}


def of_one_shape(rows: Iterable[Row], tokens: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield groups of rows, each with the length to pad them to; leftover rows are dropped.

    Only a few lengths are used, each with a fixed number of rows, because every new shape means recompiling
    the kernels.
    """
    left: list[Row] = []
    rows = sorted(rows, key=lambda one: len(one.ids), reverse=True)
    for length in LENGTHS:
        while rows and len(rows[-1].ids) <= length:
            left.append(rows.pop())
        size = max(1, tokens // length)
        while len(left) >= size:
            yield length, left[-size:]
            del left[-size:]


def batches(
    corpus: Corpus, tokenizer: Tokenizer, training: Training, place: Place
) -> Iterator[tuple[Batch, Place]]:
    """Yield batches starting at a place, each with the place that follows it.

    Rows of similar length are grouped to minimize padding. Most are single questions, since learning from a
    turn inside a conversation costs three times as much. Conversations are included from the first step: a
    model that has only seen single questions would treat all its input as one.
    """
    pad = tokenizer.special(END_OF_TEXT)
    while True:
        # A chunk depends only on its number, so that a run can resume at any chunk.
        rng = random.Random(f"{training.seed}/{place.chunk}")
        chats = some_of_each(corpus, rng, training.questions, training.conversations)
        if place.began >= training.steps * training.polished:
            training = replace(
                training, recitation=training.polished_recitation, whole=training.polished_whole
            )
        groups = list(of_one_shape(rows(chats, corpus, tokenizer, training, rng), training.batch_tokens))
        rng.shuffle(groups)
        for taken, (length, group) in enumerate(groups[place.taken :], place.taken + 1):
            ids = torch.tensor([one.ids + [pad] * (length - len(one.ids)) for one in group])
            weights = torch.tensor([one.weights + [0.0] * (length - len(one.weights)) for one in group])
            asked = [(at * length + end, answer) for at, one in enumerate(group) for end, answer in one.asked]
            yield Batch(ids, weights, torch.tensor(asked)), Place(place.chunk, place.began, taken)
        place = Place(place.chunk + 1, place.began + len(groups))


def rate(step: int, training: Training) -> float:
    """Return the fraction of the full learning rate at a step: warmup, plateau, linear decay to zero."""
    done = step / training.steps
    return min(1.0, done / training.warmup + 1e-3, (1.0 - done) / training.cooldown)


def orthogonalized(grad: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Apply Muon's Newton-Schulz iteration (Jordan et al., 2024) to a matrix, in float32.

    torch does this in bfloat16, which takes ten times as long as everything else if it has to be emulated.
    """
    a, b, c = coefficients
    x = grad.float().T if grad.size(0) > grad.size(1) else grad.float()
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def optimizers(model: Model, head: torch.nn.Module, training: Training) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers, and AdamW for the embedding, output and norms."""
    if not bfloat16():
        torch.optim._muon._zeropower_via_newtonschulz = orthogonalized
    inner = [p for p in model.blk.parameters() if p.ndim == 2]
    embedding = [model.token_embd.weight]
    known = {*inner, *embedding}
    others = [p for p in (*model.parameters(), *head.parameters()) if p not in known]
    return [
        torch.optim.Muon(
            inner, lr=training.muon_rate, weight_decay=training.weight_decay, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(
            [
                {"params": others, "lr": training.adam_rate},
                {"params": embedding, "lr": training.embedding_rate},
            ],
            betas=(0.9, 0.95),
            weight_decay=0.0,
        ),
    ]


def bag_of_words(
    corpus: Corpus, tokenizer: Tokenizer, config: Config, training: Training
) -> tuple[Tensor, torch.nn.Linear]:
    """Return an embedding (vocab, dim) whose mean over a prompt predicts the answer, and the classifier.

    A linear classifier over bags of words (Joulin et al., 2016) learns in a minute what takes a transformer
    an hour, because the transformer must first discover that the words matter at all. The first layer starts
    as this bag (`Model.begin_as_bag`). Words fade with distance, so that the last question in a conversation
    counts most.
    """
    rng = random.Random(f"{training.seed}/bag")
    chats = some_of_each(corpus, rng, training.bag_questions, training.bag_conversations)
    asks, wanted = [], []
    for one in rows(chats, corpus, tokenizer, training, rng):
        for end, answer in one.asked:
            asks.append(torch.tensor(one.ids[max(0, end + 1 - training.bag_tokens) : end + 1]))
            wanted.append(answer)
    fade = fading(config, training.bag_tokens).flip(0)[:, None]
    words = torch.nn.Embedding(config.vocab, config.dim - 1)
    head = torch.nn.Linear(config.dim, len(numbered(corpus)))
    torch.nn.init.normal_(words.weight, std=0.1)
    stepper = torch.optim.Adam([*words.parameters(), *head.parameters()], lr=5e-3)
    order, targets = list(range(len(asks))), torch.tensor(wanted)
    rounds = [at for _ in range(4) for at in rng.sample(order, len(order))]
    for at in range(0, len(rounds), 512):
        chosen = rounds[at : at + 512]
        stepper.param_groups[0]["lr"] = 5e-3 * (1 - at / len(rounds))
        said = normed(words(torch.cat([asks[one] for one in chosen])))
        said = said * torch.cat([fade[-len(asks[one]) :] for one in chosen])
        lengths = torch.tensor([len(asks[one]) for one in chosen])
        bags = normed(F.pad(torch.segment_reduce(said, "sum", lengths=lengths), (1, 0)))
        loss = F.cross_entropy(head(F.dropout(bags, 0.2)), targets[chosen])
        stepper.zero_grad()
        loss.backward()
        stepper.step()
    return F.pad(normed(words.weight.detach()), (1, 0)), head


def normed(x: Tensor) -> Tensor:
    """Return vectors (..., dim) scaled to a root mean square of one."""
    return F.rms_norm(x, x.shape[-1:])


class Run:
    """A training run that can be saved and resumed: its model, its optimizers and its place in the data."""

    def __init__(self, config: Config, training: Training, corpus: Corpus, tokenizer: Tokenizer) -> None:
        torch.manual_seed(training.seed)
        self.training, self.corpus, self.tokenizer = training, corpus, tokenizer
        self.model = Model(config)
        self.head = torch.nn.Linear(config.dim, len(numbered(corpus)))
        """Predicts the answer halfway up the layers, to train the lower half; not part of the model."""
        self.steppers = optimizers(self.model, self.head, training)
        self._full = [[group["lr"] for group in stepper.param_groups] for stepper in self.steppers]
        self.place = Place()
        self._autocast = bfloat16()

    def state(self) -> dict[str, Any]:
        """Return everything that changes during the run."""
        return {
            "place": asdict(self.place),
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "steppers": [stepper.state_dict() for stepper in self.steppers],
            "dropout": torch.get_rng_state(),
        }

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self.place = Place(**state["place"])
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        for stepper, saved in zip(self.steppers, state["steppers"], strict=True):
            stepper.load_state_dict(saved)
        torch.set_rng_state(state["dropout"])

    def steps(self) -> Iterator[tuple[float, int]]:
        """Train to the end; yield each step's loss and its number of tokens."""
        left = self.training.steps - self.place.step
        for batch, place in itertools.islice(
            batches(self.corpus, self.tokenizer, self.training, self.place), left
        ):
            for stepper, rates in zip(self.steppers, self._full, strict=True):
                for group, most in zip(stepper.param_groups, rates, strict=True):
                    group["lr"] = most * rate(self.place.step, self.training)
            # Each of the guide's own tokens is predicted at the position before it. Padding has no weight.
            wanted = batch.weights[:, 1:].flatten()
            places = wanted.nonzero().flatten()
            counts = F.pad(wanted[places], (0, -len(places) % 128))
            places = F.pad(places, (0, -len(places) % 128))
            ids, asked = batch.ids[:, :-1], batch.asked[:, 0]
            asked = asked - asked // batch.ids.shape[1]  # adjusted for rows that are a token shorter
            with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
                logits, understood = self.model(ids, places, self.training.dropout, asked)
                answers = self.head(normed(understood))
            losses = F.cross_entropy(logits.float(), batch.ids[:, 1:].flatten()[places], reduction="none")
            loss = (losses * counts).sum() / counts.sum()
            loss = loss + F.cross_entropy(answers.float(), batch.asked[:, 1]) * self.training.understanding
            loss.backward()
            for stepper in self.steppers:
                stepper.step()
                stepper.zero_grad(set_to_none=True)
            self.place = place
            yield loss.item(), batch.ids.numel()


def bfloat16() -> bool:
    """Return True if this CPU multiplies bfloat16 faster than float32, which halves the training time."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def fingerprint(config: Config, training: Training, corpus: Corpus) -> str:
    """Return a hash of everything that affects a run's result; a run only resumes if it is unchanged."""
    said = [asdict(config), asdict(training), sorted(corpus.answers.items())]
    said += [sorted((one.name, one.weight, one.ask) for one in corpus.intents.values())]
    said += [sorted((one.name, one.ask) for one in corpus.groups.values()), bfloat16()]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def tokenizer_for(corpus: Corpus, config: Config, training: Training, start: Path | None) -> Tokenizer:
    """Return the tokenizer to use: `start`'s, or for a draft, the shipped guide's, or else a new one."""
    if start:
        return Tokenizer.of_gguf(start) if start.is_file() else Tokenizer.load(start / "tokenizer.json")
    if config == DRAFT:
        return Tokenizer.of_gguf(DATA / "guide.gguf")
    return train_tokenizer(corpus, config.vocab, training)


def begun(
    mark: str, config: Config, training: Training, corpus: Corpus, out: Path, start: Path | None
) -> Run:
    """Return the run that stopped in `out` if its fingerprint is `mark`; otherwise start a new one."""
    saved = out / CHECKPOINT
    state = torch.load(saved, weights_only=True) if saved.exists() else {}
    if state.get("fingerprint") == mark:
        run = Run(config, training, corpus, Tokenizer.load(out / "tokenizer.json"))
        run.go_on_from(state["run"])
        print(f"going on from step {run.place.step}", flush=True)
        return run
    tokenizer = tokenizer_for(corpus, config, training, start)
    tokenizer.save(out / "tokenizer.json")
    run = Run(config, training, corpus, tokenizer)
    if start and start.is_file():
        run.model.load_state_dict(exported(start))
    elif start:
        known = torch.load(start / CHECKPOINT, weights_only=True)["run"]
        run.model.load_state_dict(known["model"])
        run.head.load_state_dict(known["head"])
    elif training.bag_questions:
        embedding, head = bag_of_words(corpus, tokenizer, config, training)
        run.model.begin_as_bag(embedding)
        run.head.load_state_dict(head.state_dict())
    return run


def exported(path: Path) -> dict[str, Tensor]:
    """Return the weights in a GGUF file as floats, keyed by name."""
    tensors = gguf.GGUFReader(path).tensors
    return {
        one.name: torch.tensor(gguf.quants.dequantize(one.data, one.tensor_type), dtype=torch.float32)
        for one in tensors
    }


def train(config: Config, training: Training, out: Path, start: Path | None = None) -> None:
    """Train, resuming a run stopped in `out` if possible, and write weights, tokenizer and config there.

    start: a finished run's folder, or an exported GGUF file, that provides the tokenizer and initial weights.
    """
    torch.set_num_threads(training.threads)
    torch.use_deterministic_algorithms(True)
    corpus = Corpus(GUIDE.size, training.plain)
    if start and start.is_file():  # the head that predicts answers was not exported
        known = hashlib.sha256(start.read_bytes()).hexdigest()
        training = replace(training, more_of=known, understanding=0.0)
    elif start:
        known = torch.load(start / CHECKPOINT, weights_only=True)["fingerprint"]
        training = replace(training, more_of=known)
    mark = fingerprint(config, training, corpus)
    run = begun(mark, config, training, corpus, out, start)
    started, seen = time.monotonic(), 0
    recent: deque[float] = deque(maxlen=100)
    for loss, tokens in run.steps():
        recent.append(loss)
        seen += tokens
        if run.place.step % 100 == 0:
            save(out / CHECKPOINT, {"fingerprint": mark, "run": run.state()})
        if run.place.step % 50 == 0 or run.place.step == training.steps:
            took = time.monotonic() - started
            said = f"step {run.place.step:5d}  loss {mean(recent):.4f}  {seen / took:6.0f} tokens/s"
            print(f"{said}  {took:4.0f} s", flush=True)
    weights = {name: tensor.detach().numpy() for name, tensor in run.model.state_dict().items()}
    numpy.savez(out / "weights.npz", **weights)
    (out / "config.json").write_text(json.dumps(asdict(config)), encoding="utf-8")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically, so that a complete one exists no matter when the run is stopped."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="of about 3,000 tokens each")
    parser.add_argument("--rate", type=float, default=1.0, help="times the usual learning rates")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="in place of build/guide or build/guide-draft")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--draft", action="store_true", help="train the draft of the guide that ships")
    kind.add_argument(
        "--start",
        type=Path,
        metavar="DIR|GGUF",
        help="begin with the weights of an ended run, or of an exported guide, where the corpus has grown",
    )
    options = parser.parse_args()
    config = DRAFT if options.draft else GUIDE
    training = OF_DRAFT if options.draft else MORE_OF_GUIDE if options.start else OF_GUIDE
    training = replace(
        training,
        steps=options.steps or training.steps,
        muon_rate=training.muon_rate * options.rate,
        adam_rate=training.adam_rate * options.rate,
        embedding_rate=training.embedding_rate * options.rate,
        threads=options.threads,
    )
    out = options.out or BUILD / ("guide-draft" if options.draft else "guide")
    out.mkdir(parents=True, exist_ok=True)
    print(f"{config.parameters:,} parameters, {'bfloat16' if bfloat16() else 'float32'}", flush=True)
    train(config, training, out, options.start)


if __name__ == "__main__":
    main()
