"""Predicted numbers as text: no digit that means nothing."""

import pytest

from edgechat.base.text import rough, rough_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "~0.04"),
        (0.44, "~0.4"),
        (0.97, "~1"),
        (5.21, "~5"),
        (15.3, "~15"),
        (99.4, "~99"),
        (99.6, "~100"),
        (132, "~130"),
        (1234, "~1200"),
    ],
)
def test_a_number(value, text):
    assert rough(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "~1 s"),
        (6.2, "~6 s"),
        (9.8, "~10 s"),
        (24, "~25 s"),
        (86, "~85 s"),
        (90, "~2 min"),
        (172, "~3 min"),
        (7200, "~2 h"),
    ],
)
def test_a_duration(seconds, text):
    assert rough_seconds(seconds) == text
