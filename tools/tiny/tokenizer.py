"""Byte-level BPE with the release's special tokens and number rule."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 3840
FIRST_TOKENS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
# The release's markup, in the order of its ids. As there, only the first three count as special:
# the others are text that a parser wants to see.
MARKUP_TOKENS = (
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|EOT|>",
    "<｜tool▁calls▁begin｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜deepseek_image｜>",
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Returns a byte-level BPE of `vocab_size` entries, markup included.

    Numbers are cut into at most three digits before anything else, as in the release.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKUP_TOKENS),
        special_tokens=list(FIRST_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS]
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts give {tokenizer.get_vocab_size()} tokens, wanted: {vocab_size}; "
            "give more text or a smaller vocabulary"
        )
    return tokenizer
