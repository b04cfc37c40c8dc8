"""The documentation that ships: what is found in it, and where an answer says that it is from."""

import re
from pathlib import Path

import pytest

from edgechat.guide.manual import WHERE, Manual, unlinked

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def manual():
    return Manual()


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("connect codex", "edgechat launch codex"),
        ("How do I use a GPU?", "GGML_CUDA"),
        ("quantise so that it fits in 6 gb", "--fit 6GiB"),
        ("add a lora adaptor", "--lora"),
        ("whats perplexity", "equally likely"),
    ],
)
def test_what_answers_is_found(manual, question, words):
    assert words in manual.search(question).text


def test_a_word_that_is_mistyped_is_found(manual):
    wrong, right = manual.search("quantizatoin loss"), manual.search("quantization loss")
    assert wrong.passages[0] == right.passages[0]
    assert wrong.score < right.score


def test_words_that_say_nothing_find_nothing(manual):
    assert manual.search("how do I do it?").passages == ()
    assert manual.search("zxqwv").passages == ()


def test_a_question_about_something_else_is_covered_less(manual):
    assert manual.search("list adapters of this chat").coverage > 0.8
    assert manual.search("my landlord keeps the deposit of the flat").coverage < 0.4


def test_every_passage_names_a_page_and_a_heading_that_are_there(manual):
    assert len(manual.passages) > 900
    for one in manual.passages:
        page = (DOCS / one.page).read_text(encoding="utf-8")
        assert all(re.search(rf"^#+ .*{re.escape(part)}", unlinked(page), re.M) for part in one.headings)
        assert page.startswith(f"# {one.title}\n")
        assert all(line in page for line in one.text.splitlines())
        assert re.fullmatch(rf"\[.+\]\({re.escape(WHERE + one.page)}(#[\w-]+)?\)", one.place)


def test_of_a_long_paragraph_the_sentences_that_answer_are_shown(manual):
    hit = manual.search("which speed does edgechat predict from kernels measured on this machine")
    assert "kernels" in hit.text
    assert all(len(one.shown(set(hit.asked))) < 700 for one in hit.passages)
