"""The runner of transcripts: what it takes for equal, and what it does not."""

import pytest

from tests.cli.transcripts import aligned, matches, pick, read


@pytest.mark.parametrize(
    ("expected", "said", "equal"),
    [
        (["a.b"], ["a.b"], True),
        (["a.b"], ["axb"], False),
        (["a"], ["a", "b"], False),
        (["a"], ["! a"], False),
        (["a", "[1]"], ["a"], False),
        (["took <time> of <n>"], ["took 2.5 ms of 3"], True),
        (["took <time>"], ["took a while"], False),
        (["...", "b", "..."], ["a", "b", "c"], True),
        (["...", "b", "..."], ["b"], True),
        (["...", "b", "..."], ["a", "c"], False),
        (["a<any>c"], ["a", "c"], False),
    ],
)
def test_what_matches(expected, said, equal):
    assert matches(expected, said) is equal


def test_a_pattern_outlives_a_change_beside_it():
    assert aligned(["one", "took <time>", "..."], ["two", "took 3 s"]) == ["two", "took <time>"]


def test_fields_are_picked():
    text = '[{"a": 1, "b": {"c": [{"d": "x"}, {"d": "y"}]}}, {"a": 2, "b": {"c": []}}]'
    assert pick(text, ["a=1", "b.c.*.d", "b.c.0.d"]) == '["x", "y"] "x"'
    assert pick(text, []) == '["a", "b"]\n["a", "b"]'
    assert pick(text, ["a=3", "a"]) == ""


def test_cases_are_read_and_written():
    text = "== One\n  % scene\n  $ ls\n  a\n\n  b\n  = dir\n"
    head, (case,) = read(f"Head.\n\n{text}")
    assert (head, case.title) == ("Head.\n\n", "One")
    assert [(step.line, step.expected) for step in case.steps] == [
        ("% scene", []),
        ("$ ls", ["a", "", "b"]),
        ("= dir", []),
    ]
    assert "\n".join(["== One", *case.lines(), ""]) == text
    with pytest.raises(AssertionError, match="outside"):
        read("== One\n  $ ls\noutside\n")
