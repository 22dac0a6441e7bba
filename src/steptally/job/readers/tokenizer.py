"""The vocabulary that a tokenizer brings, where a source names the tokenizer and no size.

Few launch scripts state --vocab-size: Megatron-LM asks the tokenizer. Sizes of well-known ones
are facts of the catalogue's models; any other has to be stated.
"""

from __future__ import annotations

from steptally.job.catalog.models import find_named

# Megatron-LM, megatron/core/tokenizers: GPT-2's merges, and Llama 2's SentencePiece model.
BY_TYPE = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


def vocabulary(values: dict[str, object], notes: list[str]) -> dict[str, str]:
    """Add `vocab_size` to `values` where the tokenizer tells it; return why, by setting."""
    kind = str(values.get("tokenizer_type", ""))
    if kind == "NullTokenizer" and values.get("vocab_size") is not None:
        notes.append(
            "NullTokenizer: the vocabulary is --vocab-size; before megatron-core 0.19 it has one "
            "token more, which may pad to a larger table (--set padded_vocab_size=N)."
        )
    if values.get("vocab_size") is not None or values.get("padded_vocab_size") is not None:
        return {}
    if kind in BY_TYPE:
        values["vocab_size"] = BY_TYPE[kind]
        return {"vocab_size": f"{BY_TYPE[kind]} ({kind})"}
    model = str(values.get("tokenizer_model") or values.get("tokenizer_name_or_path") or "")
    named = find_named(model)
    if named is None:
        return {}
    values["vocab_size"] = named.settings["vocab_size"]
    return {"vocab_size": f"{values['vocab_size']} ({named.name}: the tokenizer is {model})"}
