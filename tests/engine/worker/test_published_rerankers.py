"""Scores of files like those of bge-reranker-v2-m3 and Qwen3-Reranker, as the models define them."""

import numpy as np
import pytest
from gguf import GGUFReader

from tests.engine.worker.test_reranking import engine_of, scores_of
from tests.kit import rerankers
from tests.kit.reference import Reference
from tests.kit.shapes import RERANKERS

pytestmark = pytest.mark.slow

QUERY = "what is a panda"
DOCUMENTS = ("hi", "", "the giant panda is a bear", "a panda é  ate", "paris " * 40)


def pieces(text):
    """Return XLM-RoBERTa's ids of letters, the first of a word with its space."""
    found = []
    for word in text.split():
        wanted = [f"▁{word[0]}", *word[1:]] if word[0].isascii() else ["▁", *word]
        found += [
            rerankers.PIECES.index(one) if one in rerankers.PIECES else rerankers.UNKNOWN for one in wanted
        ]
    # What is unknown is one token, however long.
    return [one for n, one in enumerate(found) if one != rerankers.UNKNOWN or found[n - 1 : n] != [one]]


class XlmRoberta:
    """XLMRobertaForSequenceClassification of the `transformers` package, in float64."""

    def __init__(self, path):
        self._of = {one.name: np.asarray(one.data, np.float64) for one in GGUFReader(path).tensors}
        self._shape = RERANKERS["bert-reranker"]

    def score(self, ids):
        of, shape = self._of, self._shape
        x = (
            of["token_embd.weight"][ids]
            + of["position_embd.weight"][: len(ids)]
            + of["token_types.weight"].ravel()
        )
        x = self._norm(x, "token_embd_norm")
        for p in (f"blk.{layer}." for layer in range(shape.n_layers)):
            q, k, v = (
                self._linear(x, p + name).reshape(len(ids), shape.n_heads, shape.head).swapaxes(0, 1)
                for name in ("attn_q", "attn_k", "attn_v")
            )
            weights = softmax(q @ k.swapaxes(1, 2) / np.sqrt(shape.head))
            seen = (weights @ v).swapaxes(0, 1).reshape(len(ids), -1)
            x = self._norm(x + self._linear(seen, p + "attn_output"), p + "attn_output_norm")
            hidden = gelu(self._linear(x, p + "ffn_up"))
            x = self._norm(x + self._linear(hidden, p + "ffn_down"), p + "layer_output_norm")
        return self._linear(np.tanh(self._linear(x[0], "cls")), "cls.output").item()

    def _linear(self, x, name):
        return x @ self._of[name + ".weight"].T + self._of[name + ".bias"]

    def _norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * self._of[name + ".weight"] + self._of[name + ".bias"]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("add_sep", [True, False])
async def test_xlm_roberta_scores_a_pair_between_its_marks(add_sep, running):
    path = rerankers.xlm_roberta_reranker(add_sep=add_sep)
    found = await running(engine_of(path)).embed("r", DOCUMENTS, query=QUERY)
    begin, end = [rerankers.BEGIN], [rerankers.END]
    pairs = [begin + pieces(QUERY) + end * (1 + add_sep) + pieces(text) + end for text in DOCUMENTS]
    reference = XlmRoberta(path)
    expected = [reference.score(ids) for ids in pairs]
    assert found.tokens == sum(map(len, pairs))
    assert scores_of(found) == pytest.approx(expected, abs=5e-3)
    assert np.ptp(expected) > 0.1


async def test_qwen3_scores_the_probability_of_yes(running):
    path = rerankers.qwen3_reranker()
    found = await running(engine_of(path)).embed("r", DOCUMENTS, query=QUERY)
    expected, n_tokens = [], 0
    with Reference(path, n_batch=1024) as reference:
        for text in DOCUMENTS:
            prompt = rerankers.QWEN3_RERANK.format(query=QUERY, document=text)
            tokens = reference.tokenize(prompt, special=True)
            reference.clear()
            (probability, _) = softmax(reference.decode(tokens)[-1][[rerankers.YES, rerankers.NO]])
            expected.append(probability)
            n_tokens += len(tokens)
    assert found.tokens == n_tokens
    assert scores_of(found) == pytest.approx(expected, abs=2e-3)
    assert np.ptp(expected) > 0.05
