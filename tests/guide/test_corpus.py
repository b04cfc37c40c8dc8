"""The guide's corpus says only what is true of edgechat, and asks for everything that edgechat has."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest


@pytest.mark.slow
def test_it_is_sound(corpus):
    assert list(corpus.faults()) == []


def test_everything_with_a_name_has_an_answer(corpus):
    product, about = corpus.product, set(corpus.about)
    names = {f"command:{words}" for words in product.commands if words}
    names |= {f"option:{name}" for name in product.options} | {f"slash:{name}" for name in product.slashes}
    names |= {f"setting:{name}" for name in product.settings} | {
        f"env:{name}" for name in product.environment
    }
    names |= {f"key:{one.words.lower().replace(' ', '')}" for one in product.keys if len(one.words) > 1}
    assert names - about - set(corpus.intents) == set()
    assert len(names) > 170


@pytest.mark.parametrize(
    "text",
    [
        'Type `edgechat run MODEL "PROMPT" --temperature 0`.',
        "`edgechat chats export ID FILE` writes it; `git diff | edgechat run MODEL` asks about a diff.",
        "`edgechat pull mistral-7b:Q5_K_M --auto-quant` and `--dry-run`",
        "`context = 8192` in `settings.toml`, or `/set temperature 0.3`.",
        "Press Ctrl+N, Escape or F1; Ctrl+D ends `edgechat run MODEL`.",
        "`EDGECHAT_OFFLINE=1` opens no socket.",
    ],
)
def test_what_is_there_is_no_fault(corpus, text):
    assert corpus.product.untrue(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`edgechat fly`", "'fly'"),
        ("`edgechat run MODEL --grace 3`", "no option --grace"),
        ("`edgechat list MODEL`", "'MODEL'"),
        ("`edgechat guide`", "'guide'"),
        ("Give it --turbo.", "--turbo"),
        ("`--turbo`", "--turbo"),
        ("Press Ctrl+Y.", "Ctrl+Y"),
        ("Press F12.", "F12"),
        ("Type /fly in the prompt.", "/fly"),
        ("`/fly`", "/fly"),
        ("`contxt = 8192`", "contxt"),
        ("`threads = 0`", "threads"),
        ("`EDGECHAT_TURBO=1`", "EDGECHAT_TURBO"),
        ("`turbo.toml`", "turbo.toml"),
    ],
)
def test_what_is_not_there_is_found(corpus, text, fault):
    (found,) = corpus.product.untrue(text)[:1]
    assert fault in found


def test_a_renamed_option_changes_the_corpus(module):
    product = module("product").Product()
    before = {one.name for one in module("named").named(product)}
    serve = product.commands["serve"]
    options = [replace(one, names=("--patience",)) if one.name == "--grace" else one for one in serve.options]
    product = module("product").Product()
    product.commands["serve"] = replace(serve, options=tuple(options))
    with pytest.raises(ValueError, match="--grace"):
        module("corpus").Corpus("few", source=product)  # somebody wrote ways to ask for it
    after = {one.name: one for one in module("named").named(product)}
    assert "option:--grace" in before
    assert "option:--grace" not in after
    assert after["option:--patience"].answer.startswith("`--patience N` of `edgechat serve`: ")
    assert "`--patience`" in after["options:serve"].answer


def test_a_moved_key_changes_the_answer(module):
    corpus, product = module("corpus"), module("product").Product()
    product.keys = tuple(
        replace(one, key="ctrl+y", words="Ctrl+Y") if one.action == "new_chat" else one
        for one in product.keys
    )
    after = corpus.Corpus.filled(product, {}, "Press {key:new_chat}.")
    assert after == "Press Ctrl+Y."


def test_every_pattern_can_be_sampled(corpus):
    rng = random.Random(1)
    for intent in (*corpus.intents.values(), *corpus.groups.values()):
        assert intent.ask, intent.name
        for pattern in intent.ask:
            text = corpus.patterns.sample(pattern, rng)
            assert text, pattern
            assert not set(text) & set("{}[]()|"), pattern
            assert corpus.patterns.weight(pattern) >= 1


@pytest.mark.parametrize("pattern", ["(a|b", "a)", "[a", "{", "x]", "{nobody}"])
def test_a_broken_pattern_is_an_error(module, pattern):
    with pytest.raises(ValueError, match=r"."):
        module("patterns").Patterns({}).sample(pattern, random.Random(0))


def test_a_pattern_gives_all_its_texts(module):
    patterns, rng = module("patterns").Patterns({"who": "i|you"}), random.Random(2)
    texts = {patterns.sample("can {who} [stop] (it|this)", rng) for _ in range(300)}
    assert texts == {f"can {w} {s}{o}" for w in ("i", "you") for s in ("stop ", "") for o in ("it", "this")}


def test_other_words_stand_where_whole_words_stood(module):
    synonyms = module("patterns").Synonyms({"stop": "halt", "how do i": "how can i"}, share=1.0)
    assert (
        synonyms.say("how do i stop nonstop --stop stops", random.Random(0))
        == "how can i halt nonstop --stop stops"
    )


def test_the_same_seed_gives_the_same_conversations(corpus):
    one, two = (
        [corpus.conversation(random.Random(seed), 6) for seed in (3, 3, 4)],
        [corpus.conversation(random.Random(seed), 6) for seed in (3, 3, 4)],
    )
    assert one == two
    assert one[0] == one[1] != one[2]


def test_questions_of_an_exam_are_never_trained_on(module, corpus):
    normal, rng = module("corpus").normal, random.Random(5)
    exams = set(map(normal, module("corpus").exam_questions()))
    assert len(exams) > 300
    for _ in range(300):
        for turn in corpus.conversation(rng, 8).turns:
            assert normal(turn.ask) not in exams


def test_exams_expect_what_is_there(module, corpus):
    exam = module("exam")
    for name in module("corpus").EXAMS:
        assert exam.unknown_names(corpus, exam.exam(name)) == set()


@pytest.mark.slow
def test_say_that_again_repeats_the_last_answer(module, corpus):
    normal, rng, seen = module("corpus").normal, random.Random(6), 0
    again = {"pardon", "again", "say again", "once more", "come again", "repeat that", "say that again"}
    for _ in range(1800):
        for before, turn in pairwise(corpus.conversation(rng, 8).turns):
            if normal(turn.ask) in again:
                assert turn.answer == before.answer
                seen += 1
    assert seen > 3
