"""What a person may type or paste to name a repository of the hub."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.models.hub.names import HubName, parse_model_name, safe_path, valid_repo, valid_revision

REPO = "unsloth/Qwen3-0.6B-GGUF"
PAGE = f"https://huggingface.co/{REPO}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REPO, HubName(REPO)),
        (f"  {REPO}\n", HubName(REPO)),
        (f"{REPO}:Q5_K_M", HubName(REPO, "Q5_K_M")),
        (f"{REPO}:q5_k_m", HubName(REPO, "Q5_K_M")),
        (f"{REPO}:UD-Q4_K_XL", HubName(REPO, "UD-Q4_K_XL")),
        (f"hf.co/{REPO}", HubName(REPO)),
        (f"hf.co/{REPO}:Q8_0", HubName(REPO, "Q8_0")),
        (f"HuggingFace.co/{REPO}/", HubName(REPO)),
        (PAGE, HubName(REPO)),
        (f"{PAGE}?library=llama.cpp#files", HubName(REPO)),
        (f"{PAGE}/tree/main", HubName(REPO, revision="main")),
        (f"{PAGE}/tree/main/BF16", HubName(REPO, revision="main")),
        (f"{PAGE}/tree/refs%2Fpr%2F1", HubName(REPO, revision="refs/pr/1")),
        (f"{PAGE}/blob/main/a-Q4_0.gguf", HubName(REPO, revision="main", file="a-Q4_0.gguf")),
        (f"{PAGE}/resolve/v1/b/a%20b.gguf?download=true", HubName(REPO, revision="v1", file="b/a b.gguf")),
        ("http://hf.co:80/a/b", HubName("a/b")),
    ],
)
def test_what_is_understood(text, expected):
    assert parse_model_name(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "qwen3-4b",
        "a/b/c",
        "/a/b",
        "./a/b",
        "../a",
        "a/../b",
        "a/..",
        "~/a",
        "C:/a",
        r"C:\a\b",
        r"a\b",
        "a/b.gguf",
        "models/tiny",
        "a--b/c",
        "a/b.git",
        "a/b:",
        "a/b:Q4/c",
        "a/b:../..",
        "a/b\0",
        "a/b c",
        "a/é",
        "a/" + "b" * 96,
        "https://example.com/a/b",
        "https://huggingface.co",
        "https://huggingface.co/a",
        "https://huggingface.co/datasets/a/b",
        "https://user:secret@huggingface.co/a/b",
        "https://huggingface.co:8080/a/b",
        "https://huggingface.co.evil.com/a/b",
        "https://huggingface.co@evil.com/a/b",
        "https://[huggingface.co/a/b",
        "ftp://huggingface.co/a/b",
        "file:///a/b",
        f"{PAGE}/blob/main/../../a.gguf",
        f"{PAGE}/blob/main/%2e%2e/a.gguf",
        f"{PAGE}/blob/..%2Fx/a.gguf",
        f"{PAGE}/blob/main/a%00.gguf",
        f"{PAGE}/blob/main/a%5Cb.gguf",
        "hf.co/a/b" + "?" * 3000,
    ],
)
def test_what_is_no_name_of_the_hub(text):
    assert parse_model_name(text) is None


_part = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,30}[A-Za-z0-9_]", fullmatch=True)
_owner = _part.filter(
    lambda owner: owner.lower() not in ("api", "blog", "docs", "hf.co", "models", "papers", "spaces")
)
_repo = st.builds("{}/{}".format, _owner, _part).filter(lambda r: valid_repo(r) and not r.endswith(".gguf"))
_quant = st.none() | st.sampled_from(["Q4_K_M", "UD-Q4_K_XL", "BF16", "MXFP4"])
_revision = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,40}[A-Za-z0-9_]", fullmatch=True).filter(
    valid_revision
)
_file = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(lambda s: s + ".gguf")


@given(_repo, _quant, st.none() | _revision)
def test_a_name_comes_back_as_it_was_written(repo, quant, revision):
    name = HubName(repo, quant, revision)
    assert parse_model_name(str(name)) == name


@pytest.mark.slow
@given(_repo, _revision, _file.filter(safe_path))
def test_a_link_to_a_file_comes_back(repo, revision, file):
    name = HubName(repo, None, revision, file)
    assert parse_model_name(str(name)) == name


_piece = st.sampled_from(
    ["a", "b-1", "_", "/", "//", ".", "..", ":", "%2e", "%2F", "%5C", "%00", "@", "?", "#", " "]
)
_rest = st.lists(_piece, max_size=12).map("".join)
_place = st.sampled_from(["", "/blob/main/", "/tree/", "/x/"])
_link = st.builds("https://hf.co/a/b{}{}{}".format, st.just("") | _rest, _place, _rest)


@given(st.text(max_size=200) | _link.filter(parse_model_name))
def test_whatever_is_taken_is_harmless(text):
    found = parse_model_name(text)
    if found is not None:
        assert valid_repo(found.repo)
        assert found.revision is None or valid_revision(found.revision)
        assert found.file is None or safe_path(found.file)
