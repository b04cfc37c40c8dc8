"""Reranking models with known scores.

counting_reranker: the score of a pair rises with its share of the letter z. In its one layer, every token
attends to all others equally, so the first one gets their mean; the head reads the one channel in which z
differs. xlm_roberta_reranker, qwen3_reranker: as llama.cpp converts bge-reranker-v2-m3 and Qwen3-Reranker.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

from tests.kit.build import MODELS_DIR, Spec, data_of, fingerprint, made, table_of, write
from tests.kit.shapes import RERANKERS, Tensor
from tests.kit.tokenizers import KeyValue
from tests.kit.weights import Bytes

SPEC = Spec(shape=RERANKERS["bert-reranker"].sized(n_layers=1), name="tiny-counting-reranker")


def counting_reranker(folder: Path = MODELS_DIR) -> Path:
    """Return the path of the model."""
    path = folder / f"{SPEC.name}-{fingerprint(SPEC)}.gguf"
    return made(path, lambda to: write(SPEC, to, data=_data))


def _data(spec: Spec, tensor: Tensor, kind: Type) -> Bytes:
    shape = tensor.shape[::-1]
    values = np.zeros(shape, np.float32)
    match tensor.name:
        case "token_embd.weight":  # the norms leave channels of mean 0 and deviation 1 as they are
            values[:] = np.where(np.arange(shape[1]) % 2, 1.0, -1.0)
            values[ord("z"), :2] = 1.0, -1.0
        case "blk.0.attn_v.weight" | "blk.0.attn_output.weight" | "cls.weight":
            values[:] = np.eye(shape[0])
        case "cls.output.weight":
            values[0, 0] = 4.0
        case name if name.endswith("norm.weight"):
            return data_of(spec, tensor, kind)
    return values.view(np.uint8).reshape(shape[0], -1) if values.ndim > 1 else values.view(np.uint8)


BEGIN, END, UNKNOWN = 0, 2, 3
"""Ids in XLM-RoBERTa's vocabulary: <s>, </s> (which also separates texts), and <unk>."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ("<s>", "<pad>", "</s>", "<unk>", *(f"▁{letter}" for letter in LETTERS), *LETTERS)
"""XLM-RoBERTa's vocabulary here: letters, and letters that start a word."""

QWEN3_RERANK = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer "
    "the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The template that llama.cpp's converter gives Qwen3-Reranker."""
YES, NO = ord("y"), ord("n")
"""Ids of the tokens whose output rows are Qwen3-Reranker's head."""


def xlm_roberta_reranker(*, add_sep: bool, folder: Path = MODELS_DIR) -> Path:
    """Return the path of the model. add_sep: whether it wants two </s> between the texts, not one."""
    shape = RERANKERS["bert-reranker"].sized(token_types=1)
    labels = {"bert.classifier.output_labels": ["LABEL_0"]}
    spec = Spec(shape=shape, name=f"tiny-xlm-roberta-{add_sep}", chat_template=None, overrides=labels)
    e, biases = shape.n_embd, []
    for p in (f"blk.{layer}." for layer in range(shape.n_layers)):
        biases += [
            Tensor(f"{p}{name}.bias", (e,), 3.0, plain=True)
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down")
        ]
        biases.append(Tensor(p + "ffn_up.bias", (shape.n_ff,), 3.0, plain=True))
    path = folder / f"{spec.name}-{fingerprint(spec)}.gguf"
    return made(path, lambda to: write(spec, to, tokenizer=_unigrams(add_sep), beside=biases))


def _unigrams(add_sep: bool) -> list[KeyValue]:
    normal, unknown, control = 1, 2, 3
    types = [control, control, control, unknown, *[normal] * (len(PIECES) - 4)]
    return [
        ("tokenizer.ggml.model", "t5", Value.STRING, None),
        ("tokenizer.ggml.pre", "default", Value.STRING, None),
        ("tokenizer.ggml.tokens", list(PIECES), Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.scores", [0.0] * 4 + [-1.0] * (len(PIECES) - 4), Value.ARRAY, Value.FLOAT32),
        ("tokenizer.ggml.token_type", types, Value.ARRAY, Value.INT32),
        ("tokenizer.ggml.add_space_prefix", True, Value.BOOL, None),
        ("tokenizer.ggml.remove_extra_whitespaces", True, Value.BOOL, None),
        ("tokenizer.ggml.bos_token_id", BEGIN, Value.UINT32, None),
        ("tokenizer.ggml.eos_token_id", END, Value.UINT32, None),
        ("tokenizer.ggml.unknown_token_id", UNKNOWN, Value.UINT32, None),
        ("tokenizer.ggml.seperator_token_id", END, Value.UINT32, None),
        ("tokenizer.ggml.padding_token_id", 1, Value.UINT32, None),
        ("tokenizer.ggml.add_sep_token", add_sep, Value.BOOL, None),
    ]


def qwen3_reranker(folder: Path = MODELS_DIR) -> Path:
    """Return the path of the model, whose head is two rows of its output."""
    overrides = {"tokenizer.chat_template.rerank": QWEN3_RERANK, "tokenizer.ggml.add_eos_token": False}
    spec = Spec(shape=RERANKERS["qwen3-reranker"], name="tiny-published-qwen3-reranker", overrides=overrides)
    path = folder / f"{spec.name}-{fingerprint(spec)}.gguf"
    return made(path, lambda to: write(spec, to, data=_rows_of_output))


def _rows_of_output(spec: Spec, tensor: Tensor, kind: Type) -> Bytes:
    if tensor.name != "cls.output.weight":
        return data_of(spec, tensor, kind)
    output = next(one for one in table_of(spec) if one.name == spec.shape.logits_of)
    return data_of(spec, output, kind)[[YES, NO]]
