"""Which embedding and reranking models are loaded at all."""

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_header
from edgechat.planner.candidates import check
from tests.kit import EMBEDDERS, Spec
from tests.kit.build import write
from tests.kit.shapes import Tensor

E = EMBEDDERS["bert"].n_embd


@pytest.mark.parametrize(
    ("head", "whole"),
    [
        ({}, False),
        ({"cls.weight": (E, E)}, False),
        ({"cls.weight": (E, 1)}, True),  # Jina's
        ({"cls.output.weight": (E, 1)}, True),
        ({"cls.weight": (E, E), "cls.output.weight": (E, 1)}, True),
    ],
)
def test_a_reranking_model_needs_the_layer_that_makes_its_score(head, whole, tmp_path):
    path = tmp_path / "ranker.gguf"
    spec = Spec(shape=EMBEDDERS["bert"], name="ranker", overrides={"bert.pooling_type": 4})
    write(spec, path, beside=[Tensor(name, shape, 1.0) for name, shape in head.items()])
    header = read_header(path)
    if whole:
        check("ranker", header, may_embed=True)
    else:
        with pytest.raises(ModelFileError, match="without the classification head"):
            check("ranker", header, may_embed=True)
