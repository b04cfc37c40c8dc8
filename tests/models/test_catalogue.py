import os
from datetime import date

import pytest

from edgechat.base.errors import SettingsError
from edgechat.models.catalogue import catalogue, own_catalogue, read_catalogue

GOOD = """
[[model]]
name = "tiny"
aliases = ["small"]
description = "A tiny model."
licence = "MIT"
repo = "someone/tiny-GGUF"
file = "Tiny-{quant}.gguf"
quant = "Q8_0"
[model.sampling]
temperature = 0.7
"""


def write(folder, text):
    path = folder / "models.toml"
    path.write_text(text)
    return path


def test_the_shipped_catalogue_is_sound():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["guide"].repo is None
    assert entries["qwen3-4b"].file_for("Q4_K_M") == "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"
    assert entries["qwen3-4b"].sampling.given() == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.0,
    }
    rest = [entry for name, entry in entries.items() if name not in ("guide", "guide-draft")]
    assert all(entry.repo and entry.repo.count("/") == 1 for entry in rest)


def test_the_guide_has_a_draft_that_comes_with_it():
    entries = {entry.name: entry for entry in catalogue()}
    draft = entries[entries["guide"].draft or ""]
    assert (draft.name, draft.repo, draft.quality) == ("guide-draft", None, None)
    assert draft.sampling == entries["guide"].sampling


def test_an_entry(tmp_path):
    (entry,) = read_catalogue(write(tmp_path, GOOD))
    assert entry.names == ("tiny", "small")
    assert (entry.file_for(entry.quant), entry.file_for("q4_K_m")) == ("Tiny-Q8_0.gguf", "Tiny-q4_K_m.gguf")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("licence", "license", "unknown field license"),
        ('licence = "MIT"', "", "licence is missing"),
        ('"Q8_0"', "8", "quant = 8"),
        ('["small"]', '"small"', "aliases = 'small'"),
        ("0.7", "-1", "sampling.temperature = -1"),
        ("temperature", "temprature", "unknown field sampling.temprature"),
        ('"tiny"', '"Tiny"', "must be lower case"),
        ('"tiny"', '"a/b"', "without slashes"),
        ('"small"', '"tiny"', "names both tiny and tiny"),
        ("Tiny-{quant}.gguf", "Tiny.gguf", "{quant}"),
        ("Tiny-", "../Tiny-", "not a path"),
        ("[[model]]", "[[models]]", "only [[model]]"),
        ("[[model]]", "[model]", "only [[model]]"),
    ],
)
def test_mistakes_name_the_file_and_the_field(tmp_path, old, new, said):
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(SettingsError) as caught:
        read_catalogue(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


def test_a_mistake_names_the_model(tmp_path):
    path = write(tmp_path, GOOD + '[[model]]\nname = "other"\n')
    with pytest.raises(SettingsError, match=r"model 2 \(other\)"):
        read_catalogue(path)


def test_two_models_of_one_name(tmp_path):
    other = GOOD.replace('"tiny"', '"other"')
    with pytest.raises(SettingsError, match="'small' names both tiny and other"):
        read_catalogue(write(tmp_path, GOOD + other))


def test_a_missing_file(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        read_catalogue(tmp_path / "models.toml")


def test_the_shipped_catalogue_is_ranked_and_whole():
    ranked = [entry for entry in catalogue() if entry.quality is not None]
    assert len(ranked) >= 35
    bands = [entry.quality or 0 for entry in ranked]
    assert bands == sorted(bands, reverse=True)
    assert set(bands) == {1, 2, 3, 4, 5, 6}
    assert {"mistral-7b", "llama-3.2", "gemma-4"} <= {name for entry in catalogue() for name in entry.names}
    for entry in catalogue():
        assert (entry.draft is None) != (entry.no_draft is None), entry.name
        assert entry.description.endswith((".", "FILE")), entry.name
        if entry.repo is not None:
            assert entry.quants
            assert entry.context
            assert entry.file.endswith(".gguf")
            assert len(set(entry.labels)) == len(entry.quants)
            for quant in entry.quants:
                assert entry.quant_of(entry.file_for(quant)) in entry.labels
            assert entry.checked
        if entry.switched_sampling is not None:
            assert entry.thinking in ("default-on", "default-off"), entry.name


@pytest.mark.parametrize(
    ("name", "file", "quant"),
    [
        ("llama-3.1-8b", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-3.2-1b", "Llama-3.2-1B-Instruct-f16.gguf", "F16"),
        ("qwen2.5-coder-7b", "qwen2.5-coder-7b-instruct-fp16.gguf", "F16"),
        ("qwen2.5-coder-7b", "Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("tinyllama-1.1b", "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf", "Q4_K_M"),
        ("gpt-oss-20b", "gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("llama-3.3-70b", "Llama-3.3-70B-Instruct-Q6_K-00002-of-00002.gguf", "Q6_K"),
        ("qwen3.6-27b", "Qwen3.6-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("qwen3.6-27b", "Qwen3.6-27B-IQ4_XS.gguf", "IQ4_XS"),
        ("gemma-4-e4b", "mmproj-gemma-4-E4B-it-bf16.gguf", None),
        ("gemma-4-e4b", "mtp-gemma-4-E4B-it-Q4_0.gguf", None),
        ("qwen3-4b", "Qwen3-4B-Instruct-2507-imatrix.gguf", None),
        ("smollm3-3b", "SmolLM3-3B-Q4_K_M.gguf", None),
        ("guide", "guide.gguf", None),
    ],
)
def test_quantizations_are_read_from_names(name, file, quant):
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    assert entry.quant_of(file) == quant


def test_files_are_spelled_as_the_repository_does():
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["qwen2.5-coder-7b"].file_for("Q4_K_M") == "qwen2.5-coder-7b-instruct-q4_k_m.gguf"
    assert entries["qwen2.5-coder-7b"].file_for("F16") == "qwen2.5-coder-7b-instruct-fp16.gguf"
    assert entries["llama-3.2-1b"].file_for("F16") == "Llama-3.2-1B-Instruct-f16.gguf"
    assert entries["llama-3.2-3b"].file_for("q8_0") == "Llama-3.2-3B-Instruct-Q8_0.gguf"


def test_sampling_follows_the_switch():
    entries = {entry.name: entry for entry in catalogue()}
    thinks, may, never = entries["qwen3-8b"], entries["qwen3.5-2b"], entries["qwen3-4b"]
    assert [thinks.sampling_for(on).temperature for on in (None, True, False)] == [0.6, 0.6, 0.7]
    assert [may.sampling_for(on).presence_penalty for on in (None, False, True)] == [2.0, 2.0, 1.5]
    assert never.sampling_for(True) == never.sampling


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('draft = "nobody"', "the draft of tiny, 'nobody'"),
        ('draft = "tiny"', "the draft of tiny, 'tiny'"),
        ('draft = "x"\nno_draft = "y"', "either draft or no_draft"),
        ('superseded = "nobody"', "the successor of tiny, 'nobody'"),
        ('superseded = "tiny"', "the successor of tiny, 'tiny'"),
        ("checked = 2026", "checked = 2026"),
        ('checked = "in May"', "checked = 'in May'"),
        ('thinking = "sometimes"', "thinking = 'sometimes'"),
        ("quality = 7", "quality = 7"),
        ('quants = ["Q4_0"]', "quant = 'Q8_0' is not one of its quants"),
        ("context = 0", "context = 0"),
        ("quality = 3\nembedding = {}", "embedding models cannot chat"),
        ("quality = 3\nreranks = true", "reranking models cannot chat"),
        ("reranks = true\nembedding = {}", "either embedding or reranks"),
        ('embedding = { document = "x" }', "unknown field `document`"),
    ],
)
def test_mistakes_in_what_the_planner_reads(tmp_path, line, said):
    path = write(tmp_path, GOOD.replace('quant = "Q8_0"', f'quant = "Q8_0"\n{line}'))
    with pytest.raises(SettingsError) as caught:
        read_catalogue(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


def own(text):
    path = own_catalogue()
    path.write_text(text)
    return path


def test_the_users_own_models_are_added():
    before = catalogue()
    own(GOOD)
    assert [entry.name for entry in catalogue()] == [*(entry.name for entry in before), "tiny"]
    own_catalogue().unlink()
    assert catalogue() == before


def test_the_users_own_fields_win():
    before = {entry.name: entry for entry in catalogue()}
    own('[[model]]\nname = "qwen3-8b"\nquant = "Q8_0"\n[model.sampling]\ntemperature = 0.1')
    found = {entry.name: entry for entry in catalogue()}
    assert list(found) == list(before)
    changed = found.pop("qwen3-8b")
    assert changed.file_for(changed.quant) == "Qwen3-8B-Q8_0.gguf"
    assert changed.sampling.given() == {"temperature": 0.1}
    assert changed.aliases == before["qwen3-8b"].aliases
    assert all(found[name] is before[name] for name in found)


def test_prefixes_stay_where_another_field_is_changed():
    before = {entry.name: entry.embedding for entry in catalogue()}["embeddinggemma"]
    own('[[model]]\nname = "embeddinggemma"\nlicence = "Other"')
    changed = next(entry for entry in catalogue() if entry.name == "embeddinggemma")
    assert (changed.licence, changed.embedding) == ("Other", before)


def test_the_day_of_the_last_look_is_optional():
    dated = GOOD.replace("[model.sampling]", "checked = 2026-11-28\n[model.sampling]")
    own(dated + GOOD.replace("tiny", "other").replace("small", "o"))
    assert [entry.checked for entry in catalogue()[-2:]] == [date(2026, 11, 28), None]


def test_changes_are_seen(tmp_path):
    path = own(GOOD)
    assert catalogue()[-1].licence == "MIT"
    path.write_text(GOOD.replace("MIT", "Other"))
    os.utime(path, ns=(1, 1))
    assert catalogue()[-1].licence == "Other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[model]", "cannot be read"),
        ('[[model]]\nname = "qwen3-8b"\nquality = 9', "model 1 (qwen3-8b): quality = 9"),
        ('[[model]]\nname = "new"', "model 1 (new): description is missing"),
        (GOOD.replace('"small"', '"mistral-7b"'), "'mistral-7b' names both mistral-7b-v0.3 and tiny"),
        ("[[model]]\nname = 7", "model 1"),
        ("model = [3]", "not a table"),
    ],
)
def test_a_broken_one_is_named(text, said):
    path = own(text)
    with pytest.raises(SettingsError) as caught:
        catalogue()
    assert str(path) in caught.value.message
    assert said in caught.value.message
