"""The roofline: what can be said of every forecast, whatever the machine's figures are."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.device.speed import ROWS, Link
from edgechat.models.formats.quants import GgmlType, type_of
from edgechat.planner.estimate.budget import Layout
from edgechat.planner.estimate.calibration import Correction
from edgechat.planner.estimate.rates import FAMILIES, guessed, rate_of_card, rate_of_processor
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.estimate.speed import GRAPH, MASK, PROMPT, forecast, predict
from tests.kit.published import published
from tests.planner.golden import card

SHAPES = {
    name: shape_of(published(name))
    for name in ("llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b", "deepseek-v2-lite")
}
PER_TOKEN = 131072

_shapes = st.sampled_from(list(SHAPES.values()))
_bandwidths = st.floats(1e9, 5e12)
_computes = st.floats(1e10, 1e15)
_more = st.floats(1, 100)


def on_processor(shape, bandwidth, compute):
    return forecast(shape, Layout().placed(shape), {None: guessed(bandwidth, compute)}, PER_TOKEN)


@given(_shapes, _bandwidths, _computes, _more, st.integers(0, 10**6))
def test_more_bandwidth_is_never_slower(shape, bandwidth, compute, more, depth):
    slow, fast = on_processor(shape, bandwidth, compute), on_processor(shape, more * bandwidth, compute)
    assert fast.decoding(depth) <= slow.decoding(depth)
    assert fast.prefilling(1000, depth) <= slow.prefilling(1000, depth)


@pytest.mark.slow
@given(_shapes, _bandwidths, _computes, _more)
def test_more_compute_is_never_slower(shape, bandwidth, compute, more):
    slow, fast = on_processor(shape, bandwidth, compute), on_processor(shape, bandwidth, more * compute)
    assert fast.prefilling(1000) <= slow.prefilling(1000)
    assert fast.decoding(0) <= slow.decoding(0)


@given(_shapes, _bandwidths, _computes, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 5000))
def test_deeper_is_never_faster(shape, bandwidth, compute, depth, more, n):
    found = on_processor(shape, bandwidth, compute)
    assert found.decoding(depth + more) >= found.decoding(depth)
    assert found.prefilling(n, depth + more) >= found.prefilling(n, depth)
    whole, parts = found.prefilling(2 * n, depth), found.prefilling(n, depth) + found.prefilling(n, depth + n)
    assert whole == pytest.approx(parts)


_types = st.sampled_from(list(GgmlType))


@given(_shapes, _types, st.integers(0, 60), _bandwidths, _computes, _more, _more, st.integers(0, 10**6))
def test_no_prompt_is_read_slower_than_it_would_be_written(
    shape, kind, n_on_card, bandwidth, compute, wider, faster, depth
):
    """On any processor and any card, a server's among them."""
    n = min(n_on_card, len(shape.parts))
    on = Layout(("A",), (n,)) if n else Layout()
    rates = {
        None: guessed(bandwidth, compute),
        "A": guessed(wider * bandwidth, faster * compute),
    }
    shape = shape.scaled(1.0, kind)
    found = forecast(shape, on.placed(shape), rates, PER_TOKEN)
    assert found.prefilling(1, depth) <= found.decoding(depth + 0.5) * (1 + 1e-9)
    told = predict(found, Correction())
    assert told.ttft_ms <= 1001 * PROMPT / told.decode_tps


@given(_shapes, st.sampled_from(FAMILIES), _bandwidths, _computes, st.integers(0, 10**6))
def test_more_bits_are_never_written_faster(shape, family, bandwidth, compute, depth):
    bits = [size / n for n, size in (kind.block for kind in family)]
    assert bits == sorted(bits)
    found = [
        on_processor(shape.scaled(one / bits[0], kind), bandwidth, compute).decoding(depth)
        for one, kind in zip(bits, family, strict=True)
    ]
    assert found == sorted(found)


@pytest.mark.slow
@given(_shapes, _bandwidths, _computes, st.integers(1, 64), st.integers(1, 128))
def test_more_threads_are_never_slower(shape, bandwidth, compute, measured, threads):
    speed = guessed(bandwidth, compute, measured)
    rates = [rate_of_processor(speed, n) for n in (threads, threads + 1, measured)]
    found = [forecast(shape, Layout().placed(shape), {None: one}, PER_TOKEN) for one in rates]
    for few, many in ((found[0], found[1]), (found[0], found[2])):
        assert many.decoding(1000) <= few.decoding(1000)
        assert many.prefilling(1000) <= few.prefilling(1000)
    assert rate_of_processor(speed, measured) == rate_of_processor(speed)


def test_few_cores_are_bound_by_arithmetic():
    """Where memory is as fast as can be, unpacking is what takes the time."""
    fast_memory = on_processor(SHAPES["llama-3.1-8b"], 1e15, 200e9)
    n = sum(2 * one.n for part in SHAPES["llama-3.1-8b"].parts for one in part.matrices)
    assert fast_memory.decode > n / (0.7 * 200e9)


@given(_shapes, st.integers(0, 60), _bandwidths, _more)
def test_layers_on_a_faster_card_are_never_slower(shape, n, bandwidth, more):
    parts = len(shape.parts)
    rates = {
        None: guessed(bandwidth, 4e11),
        "A": guessed(more * bandwidth, more * 4e11),
    }
    few, many = min(n, parts - 1), min(n + 1, parts)
    layouts = [Layout(("A",), (count,)) if count else Layout() for count in (few, many)]
    slow, fast = (forecast(shape, one.placed(shape), rates, PER_TOKEN) for one in layouts)
    assert fast.decode <= slow.decode * (1 + 1e-9)


def test_a_token_reads_what_is_active():
    """At 50 GB/s and nothing else: all of a dense model, some experts of a routed one."""
    dense = on_processor(SHAPES["llama-3.1-8b"], 50e9, 1e15)
    header = published("llama-3.1-8b")
    read = header.weights_bytes - next(
        one.n_bytes for one in header.tensors if one.name == "token_embd.weight"
    )
    assert dense.decode == pytest.approx(read / 50e9, rel=0.01)
    routed = on_processor(SHAPES["qwen3-30b-a3b"], 50e9, 1e15)
    assert 0.03 < routed.decode * 50e9 / published("qwen3-30b-a3b").weights_bytes < 0.15


def test_experts_in_ram_are_read_from_there():
    shape = SHAPES["qwen3-30b-a3b"]
    rates = {None: guessed(20e9, 1e11), "A": guessed(500e9, 1e13)}
    n = len(shape.parts)
    times = [
        forecast(shape, Layout(("A",), (n,), experts).placed(shape), rates, 98304).decode
        for experts in (0, 10, 48)
    ]
    assert times == sorted(times)
    assert forecast(shape, Layout().placed(shape), rates, 98304).decode > times[-1]


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), _bandwidths, _computes)
def test_predictions_are_finite_and_corrected(decode, prefill, bandwidth, compute):
    found = on_processor(SHAPES["llama-3.1-8b"], bandwidth, compute)
    plain, corrected = predict(found, Correction()), predict(found, Correction(decode, prefill, "x"))
    assert corrected.decode_tps == pytest.approx(plain.decode_tps / decode)
    written = PROMPT * decode * found.decoding(PROMPT / 2)
    assert corrected.prompt_tps == pytest.approx(max(plain.prompt_tps / prefill, PROMPT / written))
    assert all(0 < one < math.inf for one in (corrected.decode_tps, corrected.prompt_tps, corrected.ttft_ms))


def test_cards_are_guessed_from_what_they_are():
    slow = guessed(50e9, 4e11)
    small, large = rate_of_card(card("nvidia", 8 << 30), slow), rate_of_card(card("nvidia", 24 << 30), slow)
    assert 200e9 < small.bandwidth < 350e9 < 600e9 < large.bandwidth < 1.1e12
    assert small.kernels["Q4_K"] > large.kernels["Q4_K"]
    chip = rate_of_card(card("apple", 12 << 30, shares_ram=True), guessed(200e9, 1e12))
    assert chip.bandwidth == 200e9  # it is the same memory
    assert 2 * ROWS[-1] / chip.kernels["Q4_K"][-1] >= 3e12
    server = replace(card("other", 8 << 30), devices=("RPC0",))
    assert rate_of_card(server, slow) == slow
    assert rate_of_processor(None).bandwidth < slow.bandwidth
    assert rate_of_processor(guessed(5e10, 4e11, 4)) == guessed(5e10, 4e11, 4)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("Q4_K_M", GgmlType.Q4_K),
        ("q8_0", GgmlType.Q8_0),
        ("IQ4_XS", GgmlType.IQ4_XS),
        ("UD-Q2_K_XL", GgmlType.Q2_K),
        ("fp16", GgmlType.F16),
        ("MXFP4", GgmlType.MXFP4),
        ("IQ3_M", None),
        ("", None),
        (None, None),
    ],
)
def test_a_label_names_the_type_of_most_weights(label, kind):
    assert type_of(label) == kind


def over(link, shape, split=()):
    """Return the forecast with all parts, or so many on each of two, on devices behind a link."""
    split = split or (len(shape.parts),)
    devices = tuple(f"RPC{number}" for number in range(len(split)))
    speed = msgspec.structs.replace(guessed(50e9, 1e12), link=link)
    rates = {None: guessed(50e9, 1e12)} | dict.fromkeys(devices, speed)
    return forecast(shape, Layout(devices, split).placed(shape), rates, PER_TOKEN)


def test_a_link_costs_each_token_a_round_trip_a_state_and_its_highest_logits():
    shape = SHAPES["llama-3.1-8b"]
    link = Link(up=10e6, down=20e6, round_trip=0.005)
    more = over(link, shape).decoding(0) - over(None, shape).decoding(0)
    assert more == pytest.approx(0.005 + 4 * 4096 / 10e6 + 8 * 128 / 20e6)
    # Through this machine to a second one, its state once there and once back.
    twice = over(link, shape, (16, 17)).decoding(0) - over(link, shape).decoding(0)
    assert twice == pytest.approx(0.005 + 4 * 4096 / 10e6 + 4 * 4096 / 20e6)


def test_a_prompt_sends_all_its_states_and_one_row_of_logits():
    shape = SHAPES["llama-3.1-8b"]
    slow, none = over(Link(up=1e6, down=1e9, round_trip=0.0), shape), over(None, shape)
    assert slow.graph == pytest.approx(GRAPH * 33 / 1e6)
    sent = 4 * 4096 + GRAPH * 33 / 256 + MASK * 500
    assert (slow.prefilling(1000) - none.prefilling(1000)) / 1000 == pytest.approx(sent / 1e6, rel=0.01)


@given(st.floats(1e5, 1e10), st.floats(1e5, 1e10), st.floats(0, 1), st.floats(1, 100))
def test_a_better_link_is_never_slower(up, down, trip, more):
    shape = SHAPES["qwen3-30b-a3b"]
    worse = over(Link(up=up, down=down, round_trip=trip), shape)
    better = over(Link(up=up * more, down=down * more, round_trip=trip / more), shape)
    for depth in (0, 5000):
        assert better.decoding(depth) <= worse.decoding(depth)
        assert better.prefilling(1000, depth) <= worse.prefilling(1000, depth)
