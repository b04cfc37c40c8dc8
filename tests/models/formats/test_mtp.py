"""Which files have layers that predict further tokens, and which can draft with them."""

from dataclasses import replace

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_header, read_model
from edgechat.models.formats.mtp import has_layers, is_head_alone, stated_layers, why_no_drafts
from tests.kit import tiny
from tests.kit.heads import gemma4_pair, split_head, with_head


def headed():
    return read_model(with_head("qwen35"))


def without(header, name):
    return replace(header, tensors=tuple(tensor for tensor in header.tensors if name not in tensor.name))


def test_a_file_with_its_layer():
    header = headed()
    assert stated_layers(header) == range(4, 5)
    assert has_layers(header)
    assert why_no_drafts(header) == ""


def test_a_model_without_such_layers():
    header = read_model(tiny())
    assert not stated_layers(header)
    assert not has_layers(header)
    assert why_no_drafts(header) == "The model has no drafting layers (MTP)."


@pytest.mark.parametrize("name", ["blk.4.", "nextn.", "nextn.eh_proj", "nextn.hnorm"])
def test_a_file_that_leaves_its_layer_out(name):
    header = without(headed(), name)
    assert stated_layers(header) == range(4, 5)
    assert why_no_drafts(header) == "Its own drafting layers (MTP) are missing from this file."


@pytest.mark.parametrize("arch", ["exaone4", "glm5-next", "dots3note"])
def test_an_architecture_that_llama_cpp_cannot_draft_with(arch):
    header = headed()
    metadata = {key.replace("qwen35.", f"{arch}."): value for key, value in header.metadata.items()}
    other = replace(header, metadata=metadata | {"general.architecture": arch})
    assert has_layers(other)
    assert why_no_drafts(other) == f"llama.cpp cannot draft with the 1 MTP layers of this '{arch}' model."


@pytest.mark.parametrize(("arch", "can"), [("qwen35", False), ("step35", True), ("mimo2", True)])
def test_several_layers_draft_in_some_architectures_only(arch, can):
    """llama.cpp aborts the process where they cannot."""
    header = headed()
    metadata = {key.replace("qwen35.", f"{arch}."): value for key, value in header.metadata.items()}
    more = {"general.architecture": arch, f"{arch}.block_count": 6, f"{arch}.nextn_predict_layers": 2}
    again = tuple(
        replace(tensor, name=tensor.name.replace("blk.4.", "blk.5."))
        for tensor in header.tensors
        if "nextn" in tensor.name
    )
    two = replace(header, metadata=metadata | more, tensors=(*header.tensors, *again))
    assert has_layers(two)
    assert (why_no_drafts(two) == "") == can


@pytest.mark.parametrize("n", [5, 99])
def test_a_model_has_more_than_such_layers(n):
    header = headed()
    assert why_no_drafts(replace(header, metadata=header.metadata | {"qwen35.nextn_predict_layers": n}))


def test_a_file_of_such_layers_alone_is_no_model():
    for drafter in (split_head("qwen35").drafter, gemma4_pair().drafter):
        assert is_head_alone(read_header(drafter))
        with pytest.raises(ModelFileError, match="contains only drafting layers, not a model"):
            read_model(drafter)
    for model in (with_head("qwen35"), split_head("qwen35").target, gemma4_pair().target):
        assert not is_head_alone(read_model(model))
