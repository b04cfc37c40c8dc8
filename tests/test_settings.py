import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat import settings
from edgechat.base.errors import SettingsError
from edgechat.chat.session import cache_policy
from edgechat.engine.types import CachePolicy, Sampling
from edgechat.settings import Preset, SamplingDefaults, Settings, change, documented, save
from edgechat.settings.writing import _without_empty_tables


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path))
    return tmp_path


def write(text):
    settings.settings_file().write_bytes(text if isinstance(text, bytes) else text.encode())


def refusal(text):
    write(text)
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert str(settings.settings_file()) in caught.value.message
    return caught.value


EVERYTHING = 'model = "guide"\ncontext = 4096\nthreads = 3\nidle_minutes = 2.5\n[sampling]\ntemperature = 1\n'
ALL = {"model": "guide", "context": 4096, "threads": 3, "idle_minutes": 2.5}
ALL |= {"sampling": SamplingDefaults(temperature=1.0)}
PRESET = '[presets.coder]\nsystem = "You write code."\nthink = false\n[presets.coder.sampling]\ntop_k = 5\n'
CODER = Preset(system="You write code.", think=False, sampling=SamplingDefaults(top_k=5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {"idle_minutes": 10, "draft": None}),
        (EVERYTHING, ALL),
        ('draft = "ngram"', {"draft": "ngram"}),
        ("offline = true", {"offline": True}),
        (b"\xef\xbb\xbfcontext = 4096\n", {"context": 4096}),
        (PRESET, {"presets": {"coder": CODER}}),
    ],
)
def test_what_is_read(text, expected):
    if text is not None:
        write(text)
    assert settings.load() == Settings(**expected)


@pytest.mark.parametrize(
    "server",
    ["evil:50052", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "0.0.0.0:1", "[::1]:1", "", "a\x1b:1"],
)
def test_servers_elsewhere_are_refused_in_words(server):
    error = refusal(f"rpc = ['127.0.0.1:1', {json.dumps(server)}]")
    assert f"{server!r} is not a llama.cpp server on this machine" in error.message
    assert "ssh -L" in (error.hint or "")
    with pytest.raises(SettingsError, match=r"not a llama\.cpp server"):
        change("rpc", (server,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", CachePolicy(settle=True, settle_on_battery=True, disk_bytes=None)),
        ("settle = false\nsettle_on_battery = false", CachePolicy(settle=False, settle_on_battery=False)),
        ("state_gib = 0", CachePolicy(disk_bytes=0)),
        ("state_gib = 1.5", CachePolicy(disk_bytes=3 * 2**29)),
    ],
)
def test_what_becomes_of_chats_between_their_turns(text, expected):
    write(text)
    assert cache_policy(settings.load(), lasting=True) == expected
    assert cache_policy(settings.load(), lasting=False) == msgspec.structs.replace(expected, disk_bytes=0)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("contxt = 4096", "contxt", "Did you mean context?"),
        ("[sampling]\ntemprature = 0.5", "sampling.temprature", "Did you mean sampling.temperature?"),
        ('[presets.coder]\nsytem = "x"', "presets.coder.sytem", "Did you mean presets.coder.system?"),
    ],
)
def test_a_misspelt_field(text, name, hint):
    error = refusal(text)
    assert (name in error.message, error.hint) == (True, hint)


def test_a_field_like_no_other_lists_them():
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
        ('draft = ""', "draft"),
        ("offline = 1", "offline"),
        ("idle_minutes = -1", "idle_minutes"),
        ("idle_minutes = nan", "idle_minutes"),
        ('overflow = "wndow"', "overflow"),
        ('theme = "solarized"', "theme"),
        ("screen_reader = 1", "screen_reader"),
        ('system = ""', "system"),
        ('think = "yes"', "think"),
        ("presets = 3", "presets"),
        ("[presets]\ncoder = 3", "presets.coder"),
        ("[presets.coder]\nthink = 2", "presets.coder.think"),
        ("[presets.coder.sampling]\ntop_p = 2", "presets.coder.sampling.top_p"),
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
def test_values_that_make_no_sense(text, field):
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
def test_no_toml(text):
    assert "cannot be read" in refusal(text).message


def test_control_characters_do_not_reach_the_terminal():
    assert "\x1b" not in refusal('"\\u001b[2J" = 1\n').message
    assert "\x1b" not in refusal('context = "\\u001b[2J"\n').message


def test_the_names_are_those_of_the_engine():
    assert set(SamplingDefaults.__struct_fields__) <= set(Sampling.__struct_fields__)


_some = st.builds(
    SamplingDefaults, temperature=st.none() | st.floats(0, 2), top_k=st.none() | st.integers(0, 99)
)


@given(mine=_some, theirs=_some)
def test_over_keeps_mine_and_fills_with_theirs(mine, theirs):
    both = mine.over(theirs)
    for name in SamplingDefaults.__struct_fields__:
        own, other = getattr(mine, name), getattr(theirs, name)
        assert getattr(both, name) == (other if own is None else own)
    assert Sampling(**both.given()).top_k == (40 if both.top_k is None else both.top_k)


PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5}


@pytest.mark.parametrize("name", PENALTIES)
def test_who_wants_the_likeliest_token_gets_no_penalties_of_others(name):
    makers = SamplingDefaults(top_k=20, temperature=0.7, **{name: PENALTIES[name]})
    greedy = SamplingDefaults(temperature=0.0)
    assert greedy.over(makers) == SamplingDefaults(temperature=0.0, top_k=20)
    asked = SamplingDefaults(temperature=0.0, **{name: 0.25})
    assert asked.over(makers).given()[name] == 0.25
    assert SamplingDefaults(temperature=0.5).over(makers).given()[name] == PENALTIES[name]


# Errors say what there is.


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('theme = "black"', 'Allowed values: "terminal", "dark", "light" or "high-contrast".'),
        ('theme = "drak"', "Did you mean dark?"),
        ('overflow = "x"', 'Allowed values: "window" or "error".'),
        ("threads = 1000", "Expected `int` <= 512."),
    ],
)
def test_errors_list_what_is_allowed(text, allowed):
    assert refusal(text).message.endswith(allowed)


def test_saved_prompts():
    write('[prompts]\ntr = "Translate to {language}: {text}"\n')
    assert settings.load().prompts == {"tr": "Translate to {language}: {text}"}
    change(("prompts", "tr"), None)
    change(("prompts", "sum up"), "Sum up:\n{text}")
    assert settings.load().prompts == {"sum up": "Sum up:\n{text}"}
    assert "'a\\nb' is not a valid prompt name" in refusal('[prompts]\n"a\\nb" = "x"\n').message
    assert "prompts = 3 is not valid" in refusal("prompts = 3").message


@pytest.mark.parametrize("name", ["", "a" * 41, "a\\u001bb", "a\\nb", " a", "a\\u202eb", "a\\u200b"])
def test_names_that_no_preset_has(name):
    error = refusal(f'[presets."{name}"]\nthink = true\n')
    assert "1 to 40 visible characters" in error.message
    assert error.message.isprintable()


# The documentation.


def test_every_field_is_documented():
    found = {one.name: one for one in documented()}
    inner = {f"sampling.{name}" for name in SamplingDefaults.__struct_fields__}
    assert set(found) == (set(Settings.__struct_fields__) - {"sampling"}) | inner
    for one in found.values():
        assert one.doc.endswith("."), one.name
        assert one.kind, one.name
        assert one.default, one.name
    assert found["theme"].kind == "terminal, dark, light or high-contrast"
    assert found["threads"].kind == "a whole number, 1 to 512"
    assert (found["settle"].default, found["idle_minutes"].default) == ("on", "10")


def test_the_documentation_names_every_setting_and_each_line_of_it_is_right():
    page = (Path(__file__).parent.parent / "docs" / "settings.md").read_text(encoding="utf-8")
    match = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert match is not None
    text = match.group(1)
    write(text)
    settings.load()
    for name in [one.name for one in documented()]:
        assert re.search(rf"\b{name.removeprefix('sampling.')}\b", text), name


# Changing the file.


def file_text():
    return settings.settings_file().read_bytes().decode()


def test_a_change_leaves_what_a_person_wrote():
    write(
        "# mine\n\ncontext  =  8192   # enough\nmodel = 'guide'\n\n# how\n[sampling]  # hot\n"
        "temperature = 0.7 # warm\n\n[presets.coder]\nthink = false # quick\n"
    )
    said = save(
        {
            "context": 4096,
            "theme": "dark",
            "sampling.temperature": 0.5,
            "sampling.top_k": 9,
            "presets.coder": Preset(think=True, system="Code."),
            "presets.gpt-4.1 style": {"think": None, "sampling": {"top_p": 0.5}},
        }
    )
    assert said == settings.load()
    assert said.presets["gpt-4.1 style"] == Preset(sampling=SamplingDefaults(top_p=0.5))
    text = file_text()
    assert text.startswith("# mine\n\ncontext  =  4096   # enough\nmodel = 'guide'\n")
    assert "# how\n[sampling]  # hot\ntemperature = 0.5 # warm\ntop_k = 9\n" in text
    assert "model = 'guide'\ntheme = \"dark\"\n\n# how" in text
    assert '[presets.coder]\nthink = true # quick\nsystem = "Code."\n' in text


def test_a_setting_may_be_named_in_parts():
    save({("presets", "a.b"): {}, ("presets", "a.b", "sampling", "top_k"): 3})
    assert change(("presets", "a.b", "think"), True).presets["a.b"].think
    assert settings.load().presets == {"a.b": Preset(think=True, sampling=SamplingDefaults(top_k=3))}
    change(("presets", "a.b"), None)
    assert settings.load() == Settings()


def test_nothing_takes_a_setting_out():
    write("threads = 3 # all\nsettle = false\n[sampling]\ntop_k = 3\n")
    assert save({"threads": None, "sampling.top_k": None, "presets.none": None}) == Settings(settle=False)
    assert file_text() == "settle = false\n[sampling]\n"


def test_the_first_change_makes_a_file_that_nobody_else_reads():
    assert change("rpc", ("127.0.0.1:50052",)) == Settings(rpc=("127.0.0.1:50052",))
    assert settings.load().rpc == ("127.0.0.1:50052",)
    if os.name == "posix":
        assert stat.S_IMODE(settings.settings_file().stat().st_mode) == 0o600


def test_a_change_that_changes_nothing_writes_nothing():
    assert change("threads", None) == Settings()
    assert not settings.settings_file().exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"threads": 0}, "threads"),
        ({"theme": "black"}, "theme"),
        ({"context": 4096, "nosuch": 1}, "nosuch"),
        ({"presets. x": {"think": True}}, "' x'"),
        ({"sampling.top_p": 7}, "sampling.top_p"),
        ({"context.x": 1}, "context"),
        ({"idle_minutes": float("nan")}, "idle_minutes"),
    ],
)
def test_nothing_is_written_of_what_makes_no_sense(changes, field):
    write("context = 1024\n")
    with pytest.raises(SettingsError, match=re.escape(field)):
        save(changes)
    assert file_text() == "context = 1024\n"


@pytest.mark.parametrize("text", ["context = \n", "a = 1\n", "threads = 0\n", b"model = '\xff'\n"])
def test_a_broken_file_is_never_overwritten(text):
    write(text)
    before = settings.settings_file().read_bytes()
    with pytest.raises(SettingsError):
        change("context", 4096)
    assert settings.settings_file().read_bytes() == before


def test_a_wrong_value_can_be_put_right():
    write("threads = 0 # none\n")
    assert change("threads", 2).threads == 2
    assert file_text() == "threads = 2 # none\n"


def test_the_ends_of_lines_and_the_mode_stay():
    write(b"\xef\xbb\xbfcontext = 4096\r\n# mine\r\n")
    settings.settings_file().chmod(0o640)
    change("threads", 2)
    assert settings.settings_file().read_bytes() == b"context = 4096\r\n# mine\r\nthreads = 2\r\n"
    if os.name == "posix":
        assert stat.S_IMODE(settings.settings_file().stat().st_mode) == 0o640


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "edgechat.toml"
    real.write_text("context = 4096\n")
    settings.settings_file().symlink_to(real)
    change("context", 8192)
    assert settings.settings_file().is_symlink()
    assert real.read_text() == "context = 8192\n"
    assert [one.name for one in real.parent.iterdir()] == ["edgechat.toml"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written():
    write("context = 4096\n")
    folder = settings.settings_file().parent
    folder.chmod(0o500)
    try:
        with pytest.raises(SettingsError, match="cannot be written"):
            change("context", 8192)
    finally:
        folder.chmod(0o700)


@pytest.mark.slow
def test_two_programs_lose_no_change_of_the_other():
    write("# mine\n")
    program = (
        "import sys; from edgechat.settings import change\nfor n in range(1, 9): change(sys.argv[1], n)\n"
    )
    names = ("context", "threads", "sampling.top_k")
    running = [subprocess.Popen([sys.executable, "-c", program, name]) for name in names]
    assert [one.wait(60) for one in running] == [0, 0, 0]
    assert settings.load() == Settings(context=8, threads=8, sampling=SamplingDefaults(top_k=8))
    assert file_text().startswith("# mine\n")
    assert {one.name for one in settings.settings_file().parent.iterdir()} == {
        "settings.toml",
        ".settings.lock",
    }


_shapes = st.sampled_from(
    [
        "sampling.top_k = 3\n",
        "sampling = {top_k = 3, top_p = 0.5}\n",
        "[sampling]\n",
        "[presets.a]\nthink = true\n[sampling]\ntop_k = 1\n[presets.b]\nthink = false\n",
        "presets.a.think = true\npresets.a.sampling.top_k = 3\n",
        "[presets.a.sampling]\ntop_k = 3\n[presets.a]\nthink = true\n",
        "# nothing\n",
        'system = """\n[sampling]\n"""\n# of it\n[sampling]\ntop_p = 1\n',
        "# of it\n[sampling] # here\n",
        "rpc = [\n  # one\n  '127.0.0.1:1',\n]\n",
        "",
    ]
)
_changes = st.dictionaries(
    st.sampled_from(["sampling.top_k", "context", "presets.a", "presets.c"]), st.none() | st.integers(1, 99)
)


@pytest.mark.slow
@given(text=_shapes, numbers=_changes)
def test_any_change_of_any_shape_of_file_says_what_it_should(text, numbers):
    write(text)
    changes = {
        name: {"sampling": {"top_k": n}} if name.startswith("presets") and n else n
        for name, n in numbers.items()
    }
    expected = tomllib.loads(text)
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        table = (
            expected.setdefault(head, {}) if rest and (value is not None or head in expected) else expected
        )
        if value is None:
            table.pop(rest or head, None)
        elif table is not None:
            table[rest or head] = value
    try:
        save(changes)
    except SettingsError as error:
        assert "damaging its layout" in error.message  # noqa: PT017
        assert file_text() == text
    else:
        assert _without_empty_tables(tomllib.loads(file_text())) == _without_empty_tables(expected)
