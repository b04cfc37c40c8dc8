"""Grammars of replies: what a thought, a mark and a schema let come next, and what is refused in time."""

import json
import re
import threading
import time

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import SchemaError
from edgechat.engine.prompt.template import FAMILIES
from edgechat.engine.reply.constraints import Constraints
from edgechat.engine.reply.grammar import json_rule, literal, reply_grammar
from edgechat.engine.tool_calls.tools import LONGEST_SCHEMA, relaxed
from tests.properties import examples

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
CLOSED = AGE | {"additionalProperties": False}


class Words:
    """Bytes, and control tokens; the two last tokens end a reply, one of them with a text of its own."""

    bos = eos = ""

    def __init__(self, *control):
        self._control = {256 + at: text for at, text in enumerate(control)}
        self.size = 256 + len(control) + 2
        self.ends = (self.size - 2, self.size - 1)

    def tokenize(self, text, *, bos, special):
        """Return bytes, and control tokens if these are wanted."""
        for token, mark in self._control.items():
            if special and mark in text:
                before, _, after = text.partition(mark)
                return [
                    *self.tokenize(before, bos=False, special=True),
                    token,
                    *self.tokenize(after, bos=False, special=True),
                ]
        return list(text.encode())

    def piece(self, token, *, special=False):
        """Return the bytes of a token."""
        if token in self._control:
            return self._control[token].encode() if special else b""
        return bytes([token]) if token < 256 else b"</s>" if token == self.ends[0] else b""

    def control_texts(self):
        """Return the texts of control tokens."""
        return list(self._control.values())

    def infill(self):
        """There are none."""

    def is_end(self, token):
        """Say whether it is one of the last two."""
        return token in self.ends

    def misfit(self, other):
        """Say nothing."""
        return ""


PLAIN = Words()
CONTROL = Words("<think>", "</think>")
HARMONY = Words("<|start|>", "<|channel|>", "<|message|>", "<|end|>")


@pytest.fixture(scope="module")
def makers():
    made = {id(words): Constraints(words) for words in (PLAIN, CONTROL, HARMONY)}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture
def follow(makers):
    """Return a function that makes the constraint of a schema."""

    def make(schema, words=PLAIN, marks=None, thinking=False):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        grammar = reply_grammar(f"answer: {json_rule(text)}", words, marks, thinking=thinking)
        return makers[id(words)].of(grammar).result()

    return make


def taken(constraint, words, text):
    """Return as much of a text as the grammar takes."""
    tokens = words.tokenize(text, bos=False, special=True)
    n = constraint.allows([], tokens)
    return b"".join(words.piece(one, special=True) for one in tokens[:n]).decode("utf-8", "replace")


HARMONY_MARKS, _, THINK = FAMILIES
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("words", "marks", "thinking", "text", "refused"),
    [
        (PLAIN, None, False, '{"age": 1}', ""),
        (PLAIN, None, False, '{"age": 1.5', ".5"),
        (PLAIN, None, False, ' {"age": 1}', ' {"age": 1}'),
        (PLAIN, THINK, False, '<think>a {"b"\n</think>\n\n{"age": 1}', ""),
        (PLAIN, THINK, False, '\n\n{"age": 1}', ""),
        (PLAIN, THINK, False, "Sure: {", "Sure: {"),
        (PLAIN, THINK, True, 'so\n</think>\n\n{"age": 1}', ""),
        (PLAIN, THINK, True, "</think> Well", "Well"),
        (CONTROL, THINK, False, '<think>hm</think>{"age": 1}', ""),
        (CONTROL, THINK, True, 'é世</think>\n{"age": 1}', ""),
        (CONTROL, THINK, False, '{"age": 1}', ""),
        (HARMONY, HARMONY_MARKS, False, FINAL + '{"age": 1}', ""),
        (
            HARMONY,
            HARMONY_MARKS,
            False,
            f'<|channel|>analysis<|message|>hm<|end|><|start|>assistant{FINAL}{{"age": 1}}',
            "",
        ),
        (HARMONY, HARMONY_MARKS, False, FINAL + "Sure", "Sure"),
    ],
)
def test_thoughts_are_free_and_answers_are_not(follow, words, marks, thinking, text, refused):
    constraint = follow(CLOSED, words, marks, thinking)
    assert taken(constraint, words, text) == text.removesuffix(refused)
    if not refused:
        assert constraint.is_complete(words.tokenize(text, bos=False, special=True))


def test_letters_do_not_close_a_thought_that_a_control_token_closes(follow):
    """Who reads the text would take them for the mark, and the answer for begun."""
    constraint = follow(CLOSED, CONTROL, THINK, thinking=True)
    assert constraint.allows([], list(b"a</think>")) == len("a</think")


def test_a_text_may_hold_control_tokens_and_letters():
    assert literal('say "<think>" \n', CONTROL) == '"say \\"" <[256]> "\\" \\n"'
    assert literal("<think>", PLAIN) == '"<think>"'
    assert literal("<think></think>", CONTROL) == "<[256]> <[257]>"


def test_only_end_tokens_come_where_a_reply_must_end(follow):
    constraint = follow(CLOSED)
    done = list(b'{"age": 1}')
    assert np.flatnonzero(constraint.mask(done)).tolist() == list(PLAIN.ends)
    assert not constraint.mask(done[:-1])[list(PLAIN.ends)].any()
    constraint = follow({"type": "integer"})
    allowed = constraint.mask([*b"12"])
    assert np.flatnonzero(allowed).tolist() == [*b"0123456789", *PLAIN.ends]
    assert not constraint.is_complete([*b"12"])


def test_an_end_token_that_reads_as_text_is_no_text(follow):
    inside = [*b'{"age": 1, "s": "']
    constraint = follow({"type": "object"})
    assert constraint.mask(inside)[ord("<")]
    assert not constraint.mask(inside)[list(PLAIN.ends)].any()


def test_white_space_comes_to_an_end(follow):
    constraint = follow({"type": "object"})
    for text, n in (
        (b"\n", 1),
        (b" ", 1),
        (b"\t", 0),
        (b"\r\n", 0),
        (b"\n ", 2),
        (b"\x0b", 0),
        (b"\xc2\xa0", 0),
    ):
        assert constraint.allows([*b"{"], [*text * 500]) == n
    assert constraint.allows([*b"{"], [*b"\n", *b" " * 500]) == 17
    assert constraint.allows([*b"{"], [*b"\n", *b"\t" * 500]) == 9
    for text in (b'{\n    "a": [\n      1, 2 ],\n\t"b": {}\n}', b'{"a":1,"b": [ 2 ]}'):
        assert constraint.allows([], [*text]) == len(text)


def test_formats_that_nobody_checks_are_let_be(follow):
    schema = {
        "properties": {"format": {"format": "password", "type": "string"}, "x": {"const": {"format": "odd"}}},
        "required": ["format", "x"],
        "type": "object",
    }
    text = '{"format": "secret", "x": {"format":"odd"}}'
    assert taken(follow(schema), PLAIN, text) == text
    assert taken(follow({"type": "string", "format": "date"}), PLAIN, '"2026-13') == '"2026-1'


UNKEPT = {
    "uniqueItems": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]", '["a"]'),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, '{"b": 1}', "[]"),
    "not": ({"type": "string", "not": {"const": "a"}}, '"a"', "1"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "[]", "{}"),
    "pattern": ({"type": "string", "pattern": "^(?!a)b$"}, '"abc"', "1"),
    "if": ({"type": "integer", "if": {"minimum": 3}}, "4", '"a"'),
}


@pytest.mark.parametrize("keyword", UNKEPT)
def test_of_a_schema_that_cannot_all_be_kept_the_rest_is(follow, keyword):
    part, good, wrong = UNKEPT[keyword]
    schema = {
        "type": "object",
        "properties": {"not": part},
        "required": ["not"],
        "additionalProperties": False,
    }
    kept, left_out = relaxed(schema)
    assert left_out == [f"properties.not.{keyword}"]
    constraint = follow(kept)
    assert constraint.is_complete(PLAIN.tokenize(f'{{"not": {good}}}', bos=False, special=True))
    assert taken(constraint, PLAIN, f'{{"not": {wrong}}}') != f'{{"not": {wrong}}}'


def test_of_a_schema_that_can_be_kept_nothing_is_left_out():
    assert relaxed(ANY) == (ANY, [])
    values = {"const": {"not": 1}, "enum": [{"if": 2}], "properties": {"uniqueItems": {"uniqueItems": False}}}
    assert relaxed(values) == (values | {"properties": {"uniqueItems": {}}}, [])
    assert relaxed({"oneOf": [{"not": {}}]}) == ({"anyOf": [{}]}, ["oneOf.0.not"])
    assert relaxed({"patternProperties": {"(?=a)": {}, "a": {}}}) == (
        {"patternProperties": {"a": {}}, "additionalProperties": True},
        ["patternProperties.(?=a)"],
    )


CHAIN = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(2500)} | {"d2500": {}}
WRONG = {
    "no JSON": ("{", "not valid JSON"),
    "no JSON number": ('{"const": NaN}', "NaN"),
    "a list": ("[]", "must be an object"),
    "too large": ('{"const": "' + "x" * LONGEST_SCHEMA + '"}', str(LONGEST_SCHEMA)),
    "deep": ("[" * 50_000, "nested too deeply"),
    "rather deep": ('{"items": ' * 200 + "{}" + "}" * 200, "nested too deeply"),
    "deeper": ('{"items": ' * 500 + "{}" + "}" * 500, "nested too deeply"),
    "no such type": ('{"type": "text"}', "text"),
    "not supported": ('{"not": {"type": "string"}}', "unsupported keywords: not"),
    "unique": ('{"type": "array", "uniqueItems": true}', "keywords: uniqueItems"),
    "looks ahead": ('{"type": "string", "pattern": "^(?!a)"}', "a pattern is not supported: look-around"),
    "overlaps": ('{"oneOf": [{"type": "string"}, {"maxLength": 2}]}', "several schemas of oneOf"),
    "elsewhere": ('{"$ref": "http://127.0.0.1/x"}', "127.0.0.1"),
    "a file": ('{"$ref": "file:///etc/passwd"}', "passwd"),
    "overflows the stack": (json.dumps({"$ref": "#/$defs/d0", "$defs": CHAIN}), "too complex"),
    "many may be left out": (json.dumps({"properties": {f"p{at}": {} for at in range(900)}}), "items"),
}


@pytest.mark.parametrize("name", WRONG)
def test_schemas_that_cannot_be_followed_are_refused_in_words(follow, name):
    schema, why = WRONG[name]
    with pytest.raises(SchemaError, match=why) as caught:
        follow(schema)
    assert len(caught.value.message) < 400
    assert not re.search(r"\n|coerce_one_of|regex parse|Unimplemented|at \d+\(", caught.value.message)
    follow(AGE)  # and others are still made


@pytest.mark.slow
def test_a_schema_that_is_never_compiled_is_given_up(follow, monkeypatch):
    monkeypatch.setattr("edgechat.engine.reply.constraints.TIME_LIMIT", 0.3)
    patterns = [{"type": "string", "pattern": f".*a.{{{at}}}b"} for at in range(100, 200)]
    with pytest.raises(SchemaError, match="too complex"):  # else it would take hours
        follow({"allOf": patterns})


def test_what_a_grammar_has_used_up_is_not_the_next_ones(monkeypatch):
    """Also that a grammar which compiled once is not tried out again."""
    monkeypatch.setattr("edgechat.engine.reply.constraints.limits", _few_states)
    made, tried = Constraints(PLAIN), []
    try_out = made._compile_in_child
    monkeypatch.setattr(made, "_compile_in_child", lambda grammar: (tried.append(grammar), try_out(grammar)))
    grammar = reply_grammar(
        "answer: " + json_rule('{"type": "string", "maxLength": 9999}'), PLAIN, None, thinking=False
    )
    used_up = made.of(grammar).result()
    with pytest.raises(SchemaError, match="states"):
        _ = [used_up.mask([*b'"', *b"a" * n]) for n in range(9999)]
    assert made.of(grammar).result().allows([*b'"aa'], [*b'b"']) == 2
    assert len(tried) == 1
    made.close()


def _few_states():
    import llguidance

    return llguidance.LLParserLimits(max_lexer_states=2000, verbose_errors=False)


def test_what_is_known_waits_for_no_grammar_that_is_tried_out(monkeypatch):
    """Neither a sound one nor a wrong one, which is not tried out again either."""
    made, tried, gate = Constraints(PLAIN), [], threading.Event()
    sound, wrong = 'start: "a"', 'start: %json {"type": "odd"}'
    assert made.of(sound).result().allows([], [*b"a"]) == 1
    with pytest.raises(SchemaError, match="odd"):
        made.of(wrong).result()
    monkeypatch.setattr(made, "_compile_in_child", lambda grammar: (tried.append(grammar), gate.wait()))
    waits = made.of('start: "b"')
    try:
        assert made.of(sound).result().allows([], [*b"a"]) == 1
        with pytest.raises(SchemaError, match="odd"):
            made.of(wrong).result()
        assert not waits.done()
    finally:
        gate.set()
    assert waits.result().allows([], [*b"b"]) == 1
    assert len(tried) == 1
    made.close()


def test_a_process_that_somebody_has_killed_is_no_fault_of_a_grammar(opened):
    made = opened(Constraints(PLAIN))
    made.of('start: "a"').result()
    process = psutil.Process(made._child.start().pid)
    process.kill()
    process.wait()
    assert made.of('start: "b"').result().allows([], [*b"b"]) == 1


def test_the_end_waits_for_what_looks_at_the_vocabulary_and_leaves_no_process():
    """A backend is freed next. One grammar is being tried out, for hours."""
    before, threads = set(psutil.Process().children()), set(threading.enumerate())
    made = Constraints(PLAIN)
    endless = {"allOf": [{"type": "string", "pattern": f".*a.{{{at}}}b"} for at in range(100, 200)]}
    wanted = [made.of(f"start: %json {json.dumps(endless | {'title': str(n)})}") for n in range(3)]
    while made._child._child is None:
        time.sleep(0.01)
    made.close()
    assert all(one.done() for one in wanted)
    assert not any("grammars" in one.name for one in set(threading.enumerate()) - threads)
    assert set(psutil.Process().children()) == before


def test_all_can_be_made_ready_ahead(opened):
    made = opened(Constraints(CONTROL))
    made.prepare()
    ready = made._shared_tokenizer
    assert ready is not None
    assert made.of("start: /a+/").result().allows([], [*b"aab"]) == 2
    assert made._shared_tokenizer is ready


ANY = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string", "maxLength": 9},
        "l": {"type": "array", "items": {"enum": ["a", "ab", None]}},
    },
}


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10**6)), max_size=30))
def test_what_may_come_is_the_same_whatever_was_taken_back(makers, steps):
    """Drafts come and go; a fresh constraint over what stands says the same."""
    grammar = reply_grammar(f"answer: {json_rule(json.dumps(ANY))}", PLAIN, None, thinking=False)
    constraint, said = makers[id(PLAIN)].of(grammar).result(), []
    for rejected, draw in steps:
        said = said[: max(len(said) - rejected, 0)]
        allowed = np.flatnonzero(constraint.mask(said))
        token = int(allowed[draw % len(allowed)])
        if token not in PLAIN.ends:
            said = [*said, token]
        fresh = makers[id(PLAIN)].of(grammar).result()
        assert np.array_equal(constraint.mask(said), fresh.mask(said))
        assert constraint.is_complete(said) == fresh.is_complete(said)
