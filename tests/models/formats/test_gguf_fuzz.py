"""Whatever the bytes are, the reader answers with a header or a ModelFileError, and soon."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.fuzz import PIECES, hold, lying, mutated, sound
from tests.properties import examples

pytestmark = pytest.mark.slow

CAREFUL = settings(max_examples=examples(300), deadline=None)


@CAREFUL
@given(st.integers(0, 2**64))
def test_mutated_headers(seed):
    data, size = mutated(seed)
    hold(data, size)


@CAREFUL
@given(st.binary(max_size=200), st.sampled_from([3, 2, 1, 0x03000000]), st.integers(0, 2**41))
def test_bytes_after_a_sound_beginning(data, version, size):
    whole = b"GGUF" + version.to_bytes(4, "little") + data
    hold(whole, max(size, len(whole)))


@CAREFUL
@given(st.data())
def test_one_number_overwritten(data):
    header = data.draw(st.sampled_from(sound()))
    piece = data.draw(st.sampled_from(PIECES))
    at = data.draw(st.integers(0, len(header) - len(piece)))
    hold(header[:at] + piece + header[at + len(piece) :], len(header))


@CAREFUL
@given(st.integers(0, 2**64))
def test_headers_that_contradict_themselves(seed):
    hold(*lying(seed))


def test_the_lies_are_not_all_found_out():
    """Those that remain are what plans and llama.cpp have to bear: see tests/soak."""
    outcomes = Counter(hold(*lying(seed)) for seed in range(300))
    assert outcomes.keys() == {"read", "refused"}
    assert min(outcomes.values()) > 60


def test_the_mutations_reach_every_outcome():
    outcomes = {hold(*mutated(seed)) for seed in range(500)}
    assert outcomes == {"read", "refused", "unfinished"}
