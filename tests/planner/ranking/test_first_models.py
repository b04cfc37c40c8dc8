"""The models to begin with: properties of the choice, and what it is on some machines."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.planner.candidates import Variant
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.ranking import RankedFile, Verdict
from edgechat.planner.ranking.suggestions import (
    ASSUMED_RATE,
    FIRST_TOKEN,
    Role,
    download_bytes,
    first_models,
    standing,
)
from tests.properties import examples
from tests.tui.libraries import entry as listed_entry
from tests.tui.libraries import row

GB = 10**9
FAST, BALANCED, BEST = Role.FAST, Role.BALANCED, Role.BEST


def _no_header():
    raise AssertionError("nobody reads it")


def option(name, size, *, worth, first_token=5.0, quality=3, verdict=Verdict.FITS, path=None):
    entry = CatalogueEntry(
        name=name, description="x", licence="MIT", file="{quant}", quant="Q4_K_M", quality=quality
    )
    variant = Variant(name, "Q4_K_M", int(size), _no_header, path, entry)
    if verdict is Verdict.TOO_LARGE:
        return RankedFile(variant, verdict, -math.inf, why_not="It is too large.")
    predicted = Prediction(decode_tps=10, prompt_tps=100, ttft_ms=1000 * first_token, basis="a test")
    plan = LoadPlan(model_path="", model_name=name, context=8192, threads=1, predicted=predicted)
    return RankedFile(variant, verdict, worth, plan)


OPTIONS = st.lists(
    st.builds(
        lambda size, worth, first_token, quality, verdict, local: option(
            "m",
            size,
            worth=worth,
            first_token=first_token,
            quality=quality,
            verdict=verdict,
            path=Path("/m") if local else None,
        ),
        st.floats(1e6, 1e11),
        st.floats(-2, 2),
        st.floats(0.01, 300),
        st.sampled_from([None, *range(1, 7)]),
        st.sampled_from(Verdict),
        st.booleans(),
    ),
    max_size=8,
)
RATES = st.floats(1e4, 1e10)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(OPTIONS, RATES)
def test_what_is_chosen(options, rate):
    chosen = first_models(options, rate)
    planned = [one for one in options if one.plan is not None]
    assert bool(chosen) == bool(planned)
    assert all(any(one.file is other for other in planned) for one in chosen)
    # Each once, in the order of their roles, from the one that is here first to the best.
    roles = [role for one in chosen for role in one.roles]
    assert roles in ([], [BEST], [FAST, BEST], [FAST, BALANCED, BEST])
    ranks = [one.file.rank for one in chosen]
    assert ranks == sorted(ranks)
    assert not planned or ranks[-1] == max(one.rank for one in planned)
    for one in chosen:
        assert one.download == (0 if one.file.variant.path else one.file.variant.size)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(OPTIONS, RATES)
def test_only_what_is_decent_and_quick_is_recommended(options, rate):
    chosen = first_models(options, rate)
    quick = [
        one
        for one in options
        if one.verdict is Verdict.FITS
        and one.predicted.ttft_ms <= 1000 * FIRST_TOKEN
        and (one.variant.entry.quality or 0) >= 2
    ]
    recommended = [one for one in chosen if one.is_recommended]
    assert len(recommended) == bool(quick)
    for one in recommended:
        assert any(one.file is other for other in quick)
        assert BALANCED in one.roles


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(OPTIONS, RATES)
def test_fast_is_here_within_a_minute_if_anything_is(options, rate):
    chosen = first_models(options, rate)
    fast = next((one for one in chosen if FAST in one.roles), None)
    if fast is not None:
        decent = [
            one
            for one in options
            if one.verdict is Verdict.FITS
            and one.predicted.ttft_ms <= 1000 * FIRST_TOKEN
            and (one.variant.entry.quality or 0) >= 2
        ]
        soonest = min((download_bytes(one) for one in decent), default=fast.download)
        assert fast.download <= max(60 * rate, soonest)


@settings(max_examples=examples(50))
@given(OPTIONS, RATES, st.floats(1, 100))
def test_a_faster_network_makes_nothing_worse(options, rate, times):
    slow, fast = first_models(options, rate), first_models(options, rate * times)
    for role in Role:
        before, after = (
            next((one.file.rank for one in chosen if role in one.roles), None) for chosen in (slow, fast)
        )
        assert (before is None) == (after is None)
        assert before is None or after is None or before <= after


def test_three_cards_on_a_laptop():
    small = option("small", 0.6 * GB, worth=0.5, quality=2)
    middle = option("middle", 2.5 * GB, worth=1.0, first_token=20, quality=4)
    large = option("large", 9 * GB, worth=1.5, first_token=50, quality=5)
    chosen = first_models([large, middle, small])
    assert [(one.file.variant.model, one.roles) for one in chosen] == [
        ("small", (FAST,)),
        ("middle", (BALANCED,)),
        ("large", (BEST,)),
    ]
    assert [one.is_recommended for one in chosen] == [False, True, False]


def test_one_card_where_one_model_is_best_for_all():
    (only,) = first_models([option("small", 0.6 * GB, worth=1.0), option("poor", 0.1 * GB, worth=0.1)])
    assert only.roles == (FAST, BALANCED, BEST)


def test_what_is_here_needs_no_network():
    here = option("here", 9 * GB, worth=1.5, path=Path("/here"))
    (only,) = first_models([here, option("small", 0.6 * GB, worth=0.5)], rate=1e4)
    assert (only.file, only.download) == (here, 0)


def test_a_toy_is_not_recommended():
    toy = option("toy", 0.1 * GB, worth=0.1, quality=1)
    small = option("small", 2 * GB, worth=0.5, quality=2)
    assert [one.file for one in first_models([toy, small])] == [small]
    slow = option("small", 2 * GB, worth=0.5, quality=2, first_token=40)
    chosen = first_models([toy, slow])
    assert [(one.file, one.roles, one.is_recommended) for one in chosen] == [
        (toy, (FAST,), False),
        (slow, (BEST,), False),
    ]


def test_nothing_is_recommended_where_all_are_slow_to_answer():
    (only,) = first_models([option("large", 9 * GB, worth=1.5, first_token=31)])
    assert (only.roles, only.is_recommended) == ((BEST,), False)


def test_the_draft_model_is_downloaded_as_well():
    entry = next(one for one in catalogue() if one.name == "qwen3-8b")
    alone = option("qwen3-8b", 5 * GB, worth=1.0)
    assert alone.plan is not None
    drafted = replace(alone, variant=replace(alone.variant, entry=entry))
    assert download_bytes(drafted) == 5 * GB  # drafts do not pay
    ngrams = LoadPlan(model_path="", model_name="x", context=1, threads=1, ngrams=True)
    assert download_bytes(replace(drafted, plan=ngrams)) > 5.3 * GB


@pytest.mark.parametrize("rate", [ASSUMED_RATE / 100, ASSUMED_RATE, ASSUMED_RATE * 100])
def test_no_models(rate):
    assert first_models([], rate) == ()
    assert first_models([option("huge", 90 * GB, worth=0, verdict=Verdict.TOO_LARGE)], rate) == ()


def here(name, n_params, *, quality=None, option=None, available=16 * GB):
    entry = listed_entry(name, quality) if quality is not None else None
    one = row(name, Path(f"/m/{name}"), of=entry, n_params=int(n_params))
    return name, standing(replace(one, available=available), option)


def test_the_first_on_this_machine():
    """What fits comes first, then what is quick, and then what is good: as published, or as its size says."""
    models = [
        here("quick and published", 4e9, quality=5, option=option("a", GB, worth=0)),
        here("quick and larger", 8e9, option=option("b", GB, worth=0)),
        here("quick and small", 1e9, option=option("c", GB, worth=0)),
        here("poor as published", 9e9, quality=1, option=option("d", GB, worth=0)),
        here("late", 30e9, option=option("e", GB, worth=0, first_token=99)),
        here("not compared yet", 2e9),
        here("slow", 30e9, option=option("f", GB, worth=0, verdict=Verdict.SLOW)),
        here("too large", 70e9, option=option("g", GB, worth=0, verdict=Verdict.TOO_LARGE)),
        here("unread", 0, available=0),
    ]
    assert [name for name, _ in sorted(models, key=lambda pair: pair[1], reverse=True)] == [
        name for name, _ in models
    ]
