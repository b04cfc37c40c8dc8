"""How long a prompt takes to read: as planned, then as measured."""

import pytest

from edgechat.engine.types import Finished, Timings, Usage
from edgechat.planner.estimate.speed import Forecast, Prediction
from edgechat.planner.plan import LoadPlan
from edgechat.tui.chat.prompt.reading_time import ReadingTime, notice

FORECAST = Forecast(decode=0.05, decode_depth=0.0, prefill=0.01, prefill_depth=0.0)
PLAN = LoadPlan(
    model_path="m",
    model_name="m",
    context=4096,
    threads=1,
    forecast=FORECAST,
    predicted=Prediction(decode_tps=20.0, prompt_tps=50.0, ttft_ms=20_000.0, basis="by a test"),
)


def reply(prompt, cached, tps):
    return Finished("", "stop", Usage(prompt, cached, 10), Timings(100.0, tps, 20.0), None)


def test_without_a_measurement_it_is_what_the_plan_predicts():
    assert ReadingTime().seconds(PLAN, 500, 0) == pytest.approx(10.0)


def test_a_long_prompt_corrects_it_and_a_short_one_does_not():
    time = ReadingTime()
    time.measure(PLAN, reply(100, 0, 1.0))
    time.measure(PLAN, reply(5000, 4900, 1.0))
    assert time.seconds(PLAN, 500, 0) == pytest.approx(10.0)
    time.measure(PLAN, reply(1000, 0, 200.0))
    assert time.seconds(PLAN, 500, 0) == pytest.approx(2.5)


def test_a_measurement_of_another_model_does_not_count():
    time = ReadingTime()
    time.measure(LoadPlan(**{**_fields(PLAN), "model_name": "other"}), reply(1000, 0, 200.0))
    assert time.seconds(PLAN, 500, 0) == pytest.approx(10.0)


def test_a_plan_without_a_forecast_promises_nothing():
    assert ReadingTime().seconds(LoadPlan(**{**_fields(PLAN), "forecast": None}), 500, 0) == 0.0


@pytest.mark.parametrize(
    ("n", "wait", "context", "told"),
    [
        (1000, 10.0, 4096, ""),
        (1001, 0.0, 0, "~1,001 tokens to read"),
        (1001, 2.0, 4096, "~1,001 tokens to read · 2.0 s"),
        (500, 14.0, 4096, "~500 tokens to read · 14 s"),
        (600, 14.0, 512, "~600 tokens, more than the context of 512"),
    ],
)
def test_only_what_is_long_or_slow_or_too_much_is_told(n, wait, context, told):
    assert notice(n, wait, context) == told


def _fields(plan):
    return {name: getattr(plan, name) for name in plan.__struct_fields__}
