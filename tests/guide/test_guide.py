"""The guide's corpus says only what is true of edgechat, and its weights are small."""

import random
import re
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "packaging" / "guide"


@pytest.fixture(scope="module")
def written():
    """The module `corpus`, which lies outside the package."""
    sys.path.insert(0, str(GUIDE))
    try:
        import corpus
    finally:
        sys.path.remove(str(GUIDE))
    return corpus


@pytest.fixture(scope="module")
def corpus(written):
    return written.Corpus("about 4 million")


@pytest.fixture(scope="module")
def facts():
    return tomllib.loads((GUIDE / "facts.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def answers(corpus):
    return {i.name: i.answer for i in (*corpus.intents.values(), *corpus.groups.values())}


def test_answers_name_only_commands_that_exist(answers, facts):
    named = {code for answer in answers.values() for code in re.findall(r"`([^`]*)`", answer)}
    assert named - set(facts["code"]) == set()
    assert set(facts["code"]) - named == set(), "allowed but never said: the list has grown stale"


def test_answers_name_only_options_that_exist(answers, facts):
    named = {option for answer in answers.values() for option in re.findall(r"(?<!\S)`?(--[\w-]+)", answer)}
    assert named - set(facts["options"]) == set()


def test_answers_name_only_keys_that_exist(answers, facts):
    shape = r"\b(?:(?:Ctrl|Alt|Shift|Cmd|Meta|Super)\+\w+|Enter|Escape|Esc|Tab|Delete|Backspace|F\d+)\b"
    named = {key for answer in answers.values() for key in re.findall(shape, answer)}
    assert named == set(facts["keys"])


@pytest.mark.parametrize("word", ["pull", "cookie", "api key", "sudo", "http", "/home"])
def test_answers_never_say(answers, word):
    assert [name for name, answer in answers.items() if word in answer.lower()] == []


def test_answers_are_clean_sentences(answers):
    for name, answer in answers.items():
        if name != "again":  # repeats the answer before it
            assert answer == " ".join(answer.split()), name
            assert answer[-1] in '.!?"', name
            assert answer.count("`") % 2 == 0, name
            assert answer.isascii(), name


def test_every_pattern_can_be_sampled(corpus):
    rng = random.Random(1)
    for intent in (*corpus.intents.values(), *corpus.groups.values()):
        assert intent.ask, intent.name
        for pattern in intent.ask:
            text = corpus.patterns.sample(pattern, rng)
            assert text, pattern
            assert not set(text) & set("{}[]()|"), pattern
    for pattern in corpus.systems:
        assert corpus.patterns.sample(pattern, rng)


def test_leads_exist(corpus):
    for intent in corpus.intents.values():
        assert set(intent.follow) <= set(corpus.groups), intent.name
        assert set(intent.follow.values()) <= set(corpus.intents), intent.name


@pytest.mark.parametrize("pattern", ["(a|b", "a)", "[a", "{", "x]"])
def test_a_broken_pattern_is_an_error(written, pattern):
    with pytest.raises(ValueError, match=r"."):
        written.Patterns({}).sample(pattern, random.Random(0))


def test_a_pattern_gives_all_its_texts(written):
    patterns, rng = written.Patterns({"who": "i|you"}), random.Random(2)
    texts = {patterns.sample("can {who} [stop] (it|this)", rng) for _ in range(300)}
    assert texts == {f"can {w} {s}{o}" for w in ("i", "you") for s in ("stop ", "") for o in ("it", "this")}


def test_the_same_seed_gives_the_same_conversations(corpus):
    one, two = (
        [corpus.conversation(random.Random(seed), 6) for seed in (3, 3, 4)],
        [corpus.conversation(random.Random(seed), 6) for seed in (3, 3, 4)],
    )
    assert one == two
    assert one[0] == one[1] != one[2]


def test_held_out_questions_are_never_trained_on(written, corpus):
    rng = random.Random(5)
    held_out = set(map(written.normal, written.held_out_questions()))
    assert len(held_out) > 150
    for _ in range(300):
        for turn in corpus.conversation(rng, 8).turns:
            assert written.normal(turn.ask) not in held_out


def test_held_out_expectations_exist(written, corpus):
    for case in written.held_out_cases():
        for _, expected in case["turns"]:
            for name in expected.lstrip("+").split("/"):
                assert name in corpus.intents or name.removeprefix("group:") in corpus.groups


def test_say_that_again_repeats_the_last_answer(written, corpus):
    rng = random.Random(6)
    seen = 0
    for _ in range(300):
        for before, turn in pairwise(corpus.conversation(rng, 8).turns):
            if written.normal(turn.ask) in {
                "what",
                "pardon",
                "again",
                "say again",
                "once more",
                "come again",
            }:
                assert turn.answer == before.answer
                seen += 1
    assert seen > 3


def test_the_weights_are_small_and_gguf():
    weights = ROOT / "edgechat" / "data" / "guide.gguf"
    assert weights.stat().st_size < 10_000_000
    with weights.open("rb") as file:
        assert file.read(4) == b"GGUF"
