"""Write the trained guide as a GGUF file, and check that llama.cpp tokenizes text exactly as training did.

$ python packaging/guide/export.py [--draft] [--type f16]
"""

import argparse
import itertools
import json
import random
from pathlib import Path

import gguf
import llama_cpp
import numpy
from corpus import Corpus, conversations
from places import BUILD, DATA
from shape import GUIDE, Config
from tokenizer import CHAT_TEMPLATE, END, END_OF_TEXT, SPECIAL, Tokenizer, as_text

TYPES = {
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
QUANTS = {"guide": "q5_0", "guide-draft": "q8_0"}
"""The types that ship. Smaller ones get common questions wrong ('What are you?') and draft less well."""
FILE_TYPES = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


def write(build: Path, path: Path, kind: str) -> None:
    """Write the GGUF file: metadata, tokenizer, and the weights as `kind` (norms remain float32)."""
    config = Config(**json.loads((build / "config.json").read_text(encoding="utf-8")))
    tokenizer = Tokenizer.load(build / "tokenizer.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    out = gguf.GGUFWriter(path, "llama")
    add_metadata(out, config, kind)
    add_tokenizer(out, tokenizer)
    with numpy.load(build / "weights.npz") as weights:
        for name, array in weights.items():
            if array.ndim == 1:
                out.add_tensor(name, array.astype(numpy.float32))
            else:
                out.add_tensor(name, gguf.quants.quantize(array, TYPES[kind]), raw_dtype=TYPES[kind])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_metadata(out: gguf.GGUFWriter, config: Config, kind: str) -> None:
    """Add the model's description and shape."""
    draft = config != GUIDE
    out.add_name("edgechat guide draft" if draft else "edgechat guide")
    out.add_description(
        "Guesses what the edgechat guide says next, for speculative decoding. It is not made to be asked."
        if draft
        else f"A tiny model of {config.size} parameters that answers questions about edgechat, only those."
    )
    out.add_license("mit")
    out.add_author("The edgechat project")
    out.add_languages(["en"])
    out.add_tags(["edgechat", "guide", "text-generation"])
    out.add_size_label(size_label(config.parameters))
    out.add_file_type(FILE_TYPES[kind])
    out.add_vocab_size(config.vocab)
    out.add_context_length(config.context)
    out.add_embedding_length(config.dim)
    out.add_block_count(config.layers)
    out.add_feed_forward_length(config.hidden)
    out.add_head_count(config.heads)
    out.add_head_count_kv(config.heads)
    out.add_layer_norm_rms_eps(config.norm_eps)
    out.add_rope_dimension_count(config.dim // config.heads)
    out.add_rope_freq_base(config.rope_base)


def size_label(parameters: int) -> str:
    """Return a number of parameters in GGUF's notation: 3.9M, 185K."""
    return f"{parameters / 1e6:.1f}M" if parameters >= 1e6 else f"{parameters / 1e3:.0f}K"


def add_tokenizer(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add the tokens, merges, special tokens and chat template."""
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokenizer.tokens
    ]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokenizer.tokens)
    out.add_token_types(kinds)
    out.add_token_merges([" ".join(pair) for pair in tokenizer.merges])
    out.add_bos_token_id(tokenizer.special(END_OF_TEXT))
    out.add_eos_token_id(tokenizer.special(END))
    out.add_eot_token_id(tokenizer.special(END))
    out.add_pad_token_id(tokenizer.special(END_OF_TEXT))
    out.add_add_bos_token(False)
    out.add_add_space_prefix(False)
    out.add_chat_template(CHAT_TEMPLATE)


def check_tokens(build: Path, path: Path, count: int = 3000) -> int:
    """Compare both tokenizers on all answers and `count` conversations; return how many texts were compared.

    If the ids differ from those in training, a model answers slightly worse, and nobody can tell why.
    """
    tokenizer = Tokenizer.load(build / "tokenizer.json")
    corpus = Corpus(GUIDE.size)
    llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    chats = list(itertools.islice(conversations(corpus, random.Random(0)), count))
    for chat in chats:
        ours, _ = tokenizer.render(chat)
        theirs = llama.tokenize(as_text(chat).encode(), add_bos=False, special=True)
        if ours != theirs:
            raise SystemExit(f"the tokenizers disagree on {as_text(chat)!r}")
    answers = list(corpus.answers.values())
    odd = ["Grüße, \t naïve\n\n  café 3.14 — “quotes” 日本語 🙂 don't WE'LL 100%  end ", *UNICODE]
    for text in (*answers, *odd):
        if tokenizer.encode(text) != llama.tokenize(text.encode(), add_bos=False, special=False):
            raise SystemExit(f"the tokenizers disagree on {text!r}")
    return len(chats) + len(answers) + len(odd)


UNICODE = ("²½ⅷ ١٢٣", "a\u00a0b\u2003c", "e\u0301 \u200d \ufeff", "\x01\x07", "___ $$$ __init__")


def main() -> None:
    """Export the model and check the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", choices=TYPES)
    parser.add_argument("--draft", action="store_true", help="the guide's draft")
    parser.add_argument("--build", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = "guide-draft" if options.draft else "guide"
    build, out = options.build or BUILD / name, options.out or DATA / f"{name}.gguf"
    write(build, out, options.type or QUANTS[name])
    agreed = check_tokens(build, out)
    print(f"{out}: {out.stat().st_size:,} bytes; both tokenizers agree on {agreed:,} texts")


if __name__ == "__main__":
    main()
