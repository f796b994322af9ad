"""Engram's compressed vocabulary: token ids whose texts differ only in case, accents or spacing.

The rule is the one of the DeepSeek-V4.1 reference (`inference/engram.py`), which vLLM and
DeepInfer 0.1.0 follow too. The map must be built from the tokenizer as shipped, before any run-time
token is added: the hash multipliers depend on the number of distinct ids.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, normalizers

from di_engine.config import ModelConfig
from di_engine.errors import ConfigError

_LONE_SPACE = "\ue000"
"""Stands for a text that is one space while white space is stripped."""


def build_token_map(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.int64]:
    """Numbers the tokens of a tokenizer so that equivalent spellings share a number.

    Args:
        tokenizer: The checkpoint's tokenizer, unchanged.
        vocab_size: Ids 0 to ``vocab_size - 1`` are mapped.

    Returns:
        Compressed id of each token id, first-seen order from 0, shape [vocab_size].
    """
    normalizer = _text_normalizer()
    numbers: dict[str, int] = {}
    token_map = np.empty(vocab_size, dtype=np.int64)
    for token_id in range(vocab_size):
        key = _spelling(tokenizer, normalizer, token_id)
        token_map[token_id] = numbers.setdefault(key, len(numbers))
    return token_map


def check_token_map(token_map: NDArray[np.int64], config: ModelConfig) -> None:
    """Refuses a map that does not belong to the model.

    Raises:
        ConfigError: The length or the number of distinct ids differs from the configuration.
    """
    if token_map.shape != (config.vocab_size,):
        raise ConfigError(
            f"the Engram token map must have `vocab_size` = {config.vocab_size} entries: "
            f"shape {tuple(token_map.shape)}"
        )
    distinct = int(np.unique(token_map).size)
    bound = int(token_map.max()) + 1 if token_map.size else 0
    expected = config.engram_compressed_vocab_size
    if distinct != expected or bound != expected or int(token_map.min()) < 0:
        raise ConfigError(
            f"the tokenizer gives {distinct} compressed ids (largest {bound - 1}), the model needs "
            f"`engram_compressed_vocab_size` = {expected}: use the tokenizer of the checkpoint"
        )


def placeholder_token_map(config: ModelConfig) -> NDArray[np.int64]:
    """A map of the right shape for weights that mean nothing (``load_format=dummy``)."""
    ids = np.arange(config.vocab_size, dtype=np.int64)
    return np.minimum(ids, config.engram_compressed_vocab_size - 1)


def _spelling(tokenizer: Tokenizer, normalizer: normalizers.Normalizer, token_id: int) -> str:
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\N{REPLACEMENT CHARACTER}" in text:
        # Part of a character: only the byte-level spelling identifies it.
        return tokenizer.id_to_token(token_id) or text
    return normalizer.normalize_str(text) or text


def _text_normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )
