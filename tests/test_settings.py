from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat import settings
from edgechat.chat.upkeep import upkeep
from edgechat.engine.types import Sampling, Upkeep
from edgechat.errors import SettingsError
from edgechat.settings import SamplingDefaults, Settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path))
    return tmp_path


def write(text: str | bytes) -> None:
    settings.settings_file().write_bytes(text if isinstance(text, bytes) else text.encode())


def refusal(text: str | bytes) -> SettingsError:
    write(text)
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert str(settings.settings_file()) in caught.value.message
    return caught.value


def test_no_file_means_defaults() -> None:
    assert settings.load() == Settings(idle_minutes=10)


def test_everything_at_once() -> None:
    write('model = "guide"\ncontext = 4096\nthreads = 3\nidle_minutes = 2.5\n[sampling]\ntemperature = 1\n')
    expected = Settings(model="guide", context=4096, threads=3, idle_minutes=2.5)
    assert settings.load() == msgspec.structs.replace(expected, sampling=SamplingDefaults(temperature=1.0))


def test_who_drafts() -> None:
    assert settings.load().draft is None
    write('draft = "ngram"\n')
    assert settings.load().draft == "ngram"
    assert "draft" in refusal('draft = ""\n').message


def test_staying_off_the_network() -> None:
    write("offline = true\n")
    assert settings.load().offline
    assert "offline" in refusal("offline = 1\n").message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Upkeep(settle=True, settle_on_battery=True, disk_bytes=None)),
        ("settle = false\nsettle_on_battery = false", Upkeep(settle=False, settle_on_battery=False)),
        ("state_gib = 0", Upkeep(disk_bytes=0)),
        ("state_gib = 1.5", Upkeep(disk_bytes=3 * 2**29)),
    ],
)
def test_what_becomes_of_chats_between_their_turns(text: str, expected: Upkeep) -> None:
    write(text)
    assert upkeep(settings.load()) == expected


def test_a_byte_order_mark_is_no_error() -> None:
    write(b"\xef\xbb\xbfcontext = 4096\n")
    assert settings.load().context == 4096


def test_a_misspelt_field() -> None:
    error = refusal("contxt = 4096\n")
    assert "contxt" in error.message
    assert error.hint == "Did you mean context?"


def test_a_misspelt_field_of_a_table() -> None:
    error = refusal("[sampling]\ntemprature = 0.5\n")
    assert "sampling.temprature" in error.message
    assert error.hint == "Did you mean sampling.temperature?"


def test_a_field_like_no_other_lists_them() -> None:
    assert "idle_minutes" in (refusal("zzz = 1\n").hint or "")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('context = "big"', "context"),
        ("context = 0", "context"),
        (f"context = {'9' * 30}", "context"),
        (f"threads = 0x{'f' * 10_000}", "threads"),
        ("threads = -1", "threads"),
        ("threads = 2.5", "threads"),
        ("threads = true", "threads"),
        ('model = ""', "model"),
        ("idle_minutes = -1", "idle_minutes"),
        ("idle_minutes = nan", "idle_minutes"),
        ('overflow = "wndow"', "overflow"),
        ("settle = 1", "settle"),
        ('settle_on_battery = "no"', "settle_on_battery"),
        ("state_gib = -1", "state_gib"),
        ("state_gib = inf", "state_gib"),
        ("state_gib = nan", "state_gib"),
        ("sampling = 3", "sampling"),
        ("[sampling]\ntop_p = 0", "sampling.top_p"),
        ("[sampling]\ntemperature = nan", "sampling.temperature"),
        ("[sampling]\ntemperature = inf", "sampling.temperature"),
    ],
)
def test_values_that_make_no_sense(text: str, field: str) -> None:
    error = refusal(text)
    assert f"{field} = " in error.message
    assert "null" not in error.message


@pytest.mark.parametrize(
    "text",
    [
        "context = \n",
        "a = 1\na = 2\n",
        b"model = '\xff'\n",
        f"a = {'[' * 100_000}{']' * 100_000}\n",
        f"context = {'9' * 5000}\n",
    ],
    ids=["no value", "twice", "no UTF-8", "nested", "digits"],
)
def test_no_toml(text: str | bytes) -> None:
    assert "cannot be read" in refusal(text).message


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in refusal('"\\u001b[2J" = 1\n').message
    assert "\x1b" not in refusal('context = "\\u001b[2J"\n').message


def test_the_names_are_those_of_the_engine() -> None:
    assert set(SamplingDefaults.__struct_fields__) <= set(Sampling.__struct_fields__)


_some = st.builds(
    SamplingDefaults, temperature=st.none() | st.floats(0, 2), top_k=st.none() | st.integers(0, 99)
)


@given(mine=_some, theirs=_some)
def test_over_keeps_mine_and_fills_with_theirs(mine: SamplingDefaults, theirs: SamplingDefaults) -> None:
    both = mine.over(theirs)
    for name in SamplingDefaults.__struct_fields__:
        own, other = getattr(mine, name), getattr(theirs, name)
        assert getattr(both, name) == (other if own is None else own)
    assert Sampling(**both.given()).top_k == (40 if both.top_k is None else both.top_k)
