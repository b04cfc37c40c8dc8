"""Citations and quotations in replies."""

import pytest

from edgechat.documents.citations import citations_in, quotations_in
from tests.counting import calls_of

SOURCE = "The lighthouse was built in 1871; its lamp,\nhowever, burned oil until 1923. Der Turm steht noch."


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is so [1].", [(1,)]),
        ("So [1][2], and so [2, 1] or [1; 2].", [(1,), (2,), (2, 1), (1, 2)]),
        ("Unknown ones [3], [1, 3] are left.", []),
        ("`a[1]` and\n```\nb [1]\n```\nand [2]", [(2,)]),
        ("```\nnever closed [1]", []),
        ("x[1] and y[1][2] are indices, [1](http://a.b) a link, [1][ref] and [1][2](c) too", []),
        ("[0] [00001] [] [a] [1.]", []),
        ("[" + ", ".join("1" * 99) + "]", []),
    ],
)
def test_citations(text, numbers):
    found = citations_in(text, {1, 2})
    assert [one.numbers for one in found] == numbers
    assert all(text[one.start] == "[" and text[one.end - 1] == "]" for one in found)


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ('It says "the lighthouse was built in 1871".', [True]),
        ("It says “its LAMP, however, burned oil”.", [True]),
        ("Es sagt „Der Turm steht noch“.", [True]),
        ("Il dit « its lamp however burned oil ».", [True]),
        ('"The lighthouse was … until 1923"', [True]),
        ('"The lighthouse [...] burned oil until 1923"', [True]),
        ('"The lighthouse was built in 1872 by the king"', [False]),
        ('"The lighthouse was ... torn down last year"', [False]),
        ('"lighthouse built burned oil"', [False]),
        ('"a name", "of three words"', []),
        ('`"the lighthouse was built in 1900"`', []),
        ('"house was built in 1871"', [False]),  # part of a word is not the word
        ('"… … …"', []),
        (f'"{"word " * 400}"', [False]),
        (f'"{"word " * 400}."', []),  # a search for its end is bounded
    ],
)
def test_quotations_are_held_against_the_source(text, is_there):
    found = quotations_in(text, [SOURCE, "another source"])
    assert [one.is_there for one in found] == is_there
    assert all(one.text in text[one.start : one.end] for one in found)


def test_a_quotation_is_in_one_passage():
    (only,) = quotations_in('"one two three … four five six"', ["one two three", "four five six"])
    assert not only.is_there


@pytest.mark.parametrize(
    "sign", ['"', "[1, ", "`", "„", "… ", "[1] ", '"one two three four" ', '`a` [1]"b c d e" ']
)
def test_a_hostile_reply_costs_as_much_as_it_is_long(sign):
    def cost(n):
        return calls_of(lambda: (citations_in(sign * n, {1}), quotations_in(sign * n, [SOURCE])))

    cost(1)  # what is compiled once
    assert cost(4_000) < 2.2 * cost(2_000)  # four times, were it quadratic
