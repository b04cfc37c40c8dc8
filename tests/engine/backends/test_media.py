"""Ids of media among tokens: unique, found again, with correct positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.backends.base import (
    MOST_CELLS,
    MediaRun,
    Places,
    is_media,
    key_of,
    media_ids,
    media_runs,
)


def test_the_same_content_has_the_same_ids():
    ids = media_ids(b"a", 16, 4)
    assert ids == media_ids(b"a", 16, 4)
    assert len(ids) == 16
    assert all(map(is_media, ids))
    assert max(ids) < 2**31
    assert ids[0] != media_ids(b"b", 16, 4)[0]
    assert key_of(ids) != key_of(media_ids(b"a", 16, 5))


@pytest.mark.parametrize(
    ("n_cells", "n_positions"), [(1, 1), (MOST_CELLS + 1, 4), (4, 0), (4, MOST_CELLS + 1)]
)
def test_sizes_that_ids_cannot_tell_are_refused(n_cells, n_positions):
    with pytest.raises(ValueError, match="cannot be represented"):
        media_ids(b"a", n_cells, n_positions)


parts = st.lists(
    st.one_of(
        st.lists(st.integers(0, 300_000), max_size=4),
        st.tuples(st.binary(max_size=3), st.integers(2, 9), st.integers(1, 2)),
    ),
    max_size=6,
)


@given(parts)
def test_runs_are_found_where_they_are(parts):
    tokens = []
    runs = []
    for part in parts:
        if isinstance(part, tuple):
            runs.append(MediaRun(len(tokens), part[1], part[2]))
            tokens += media_ids(*part)
        else:
            tokens += part
    assert list(media_runs(tokens)) == runs


@given(parts)
def test_places_follow_what_was_computed(parts):
    """Against a count, part by part, as llama.cpp's positions are given."""
    places, index, position, last = Places(), 0, 0, -1
    for part in parts:
        assert places.position(index) == position
        assert not places.is_inside(index)
        if isinstance(part, tuple):
            places.runs.append(MediaRun(index, part[1], part[2]))
            last = position if part[2] < part[1] else position + part[1] - 1
            index, position = index + part[1], position + part[2]
            assert places.is_inside(index - 1)
        else:
            index, position = index + len(part), position + len(part)
            last = position - 1 if part else last
        assert places.length(last) == index
    assert places.up_to(0).runs == []
    assert places.up_to(index).runs == places.runs
