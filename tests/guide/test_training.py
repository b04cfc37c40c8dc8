"""Training the guide: a run that was stopped goes on, and makes the weights that it would have made."""

import itertools
from dataclasses import replace

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="only who trains the guide needs torch")


@pytest.fixture
def run(module, corpus):
    """Make a run of a tiny model over 6 steps."""
    train, shape = module("train"), module("shape")
    config = shape.Config(vocab=2048, dim=32, layers=1, heads=1, hidden=32)
    training = replace(train.OF_GUIDE, steps=6, batch_tokens=512, tokenizer_conversations=500)
    tokenizer = train.train_tokenizer(corpus, config.vocab, training)
    torch.use_deterministic_algorithms(True)
    return lambda: train.Run(config, training, corpus, tokenizer)


def test_one_that_was_stopped_makes_the_same_weights(run, tmp_path):
    whole = run()
    losses = [loss for loss, _ in whole.steps()]
    first = run()
    early = [loss for loss, _ in itertools.islice(first.steps(), 4)]
    torch.save(first.state(), tmp_path / "checkpoint.pt")
    second = run()
    second.go_on_from(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert early + [loss for loss, _ in second.steps()] == losses
    assert second.place == whole.place
    ours, theirs = whole.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_first_layer_begins_as_a_bag_of_words(module):
    """It adds the words, nearer ones more, so what reads the answer from a bag reads it from the layer."""
    torch.manual_seed(1)
    config = module("shape").Config(vocab=512, dim=128, layers=2, heads=2, hidden=64)
    model = module("model").Model(config)
    words = torch.nn.functional.pad(module("train").normed(torch.randn(512, 127)), (1, 0))
    model.begin_as_bag(words)
    ids = torch.randint(0, 512, (1, 300))
    with torch.no_grad():
        _, [understood] = model(ids, torch.tensor([0]), asked=torch.tensor([299]))
    counts = module("model").fading(config, 300).flip(0)
    bag = counts @ words[ids[0]]
    assert torch.nn.functional.cosine_similarity(understood[1:], bag[1:], dim=0) > 0.9
    evenly = words[ids[0]].mean(dim=0)
    assert torch.nn.functional.cosine_similarity(understood[1:], evenly[1:], dim=0) < 0.8
    assert counts[-60:].sum() > 4 * counts[:-60].sum()


def test_another_corpus_is_another_run(module, corpus):
    train, shape = module("train"), module("shape")
    mark = train.fingerprint(shape.GUIDE, train.OF_GUIDE, corpus)
    assert mark == train.fingerprint(shape.GUIDE, train.OF_GUIDE, corpus)
    assert mark != train.fingerprint(shape.GUIDE, replace(train.OF_GUIDE, seed=2), corpus)
    other = module("corpus").Corpus("another size")
    assert mark != train.fingerprint(shape.GUIDE, train.OF_GUIDE, other)
