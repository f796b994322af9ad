"""The tokens of a model as bytes, and the three views of them that grammars need.

A JSON grammar must not spell text with special tokens, and xgrammar 0.2.9 lets raw control
characters into strings with a length bound, which JSON forbids. Both are settled here, once for
every grammar, by giving such tokens bytes that are not UTF-8: no text rule can match them, while a
rule may still name them by id.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import xgrammar

__all__ = ["Vocabulary", "VocabularyView"]

VocabularyView = Literal["json", "plain", "full"]
"""json: no special tokens, no control characters but line feed and carriage return. plain: no
special tokens. full: everything, for structural tags, whose markers are special tokens."""

VIEWS: tuple[VocabularyView, ...] = ("json", "plain", "full")

UNMATCHABLE = b"\xff"
FORBIDDEN_IN_JSON = frozenset(range(0x20)) - {0x0A, 0x0D}
# xgrammar 0.2.9 takes the bytes of U+D800 to U+DFFF for characters, which UTF-8 forbids. A token
# that ends behind the first of them could be continued that way, and no mask would notice.
SURROGATE = re.compile(rb"\xed([\xa0-\xbf]|$)", re.DOTALL)


class Vocabulary:
    """The tokens of a model.

    Immutable; safe to share between threads.

    Args:
        tokens: What each id adds to the text, as bytes; `b""` for an id that never stands for text.
        vocab_size: Width of the logits; ids from `len(tokens)` on are padding, which no grammar
            allows. Defaults to `len(tokens)`.
        stop_token_ids: The end-of-text ids. At least one.
        special_token_ids: Control tokens, such as role and reasoning markers. Stop ids count as
            special. Their bytes are kept for structural tags; no JSON schema, regular expression,
            EBNF rule or choice can spell text with them.

    Raises:
        ValueError: An id is outside the vocabulary, or there is no stop id.
        TypeError: A token is not bytes.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        vocab_size: int | None = None,
        stop_token_ids: Iterable[int],
        special_token_ids: Iterable[int] = (),
    ) -> None:
        """Checks the ids and keeps the tokens."""
        self.tokens = tuple(tokens)
        self.vocab_size = len(self.tokens) if vocab_size is None else int(vocab_size)
        self.stop_token_ids = tuple(dict.fromkeys(int(i) for i in stop_token_ids))
        self.special_token_ids = frozenset(int(i) for i in special_token_ids) | frozenset(
            self.stop_token_ids
        )
        for index, token in enumerate(self.tokens):
            if not isinstance(token, bytes):
                raise TypeError(f"`tokens[{index}]` must be bytes, got {type(token).__name__}")
        if self.vocab_size < len(self.tokens):
            raise ValueError(
                f"`vocab_size` must be at least the number of tokens {len(self.tokens)}, got "
                f"{self.vocab_size}"
            )
        if not self.stop_token_ids:
            raise ValueError(
                "`stop_token_ids` is empty: a complete text needs a token that ends it"
            )
        for token_id in sorted(self.special_token_ids):
            if not 0 <= token_id < len(self.tokens):
                raise ValueError(
                    f"token id {token_id} is outside the vocabulary of {len(self.tokens)} tokens"
                )
        self._infos: dict[VocabularyView, xgrammar.TokenizerInfo] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_tokenizer_json(
        cls,
        tokenizer: str | Mapping[str, Any],
        *,
        vocab_size: int | None = None,
        stop_token_ids: Iterable[int],
    ) -> "Vocabulary":
        """Reads a `tokenizer.json` of the byte-level BPE kind (DeepSeek, GPT-2, Llama 3, Qwen).

        Every added token counts as special, whether or not the file marks it so: added tokens are
        control tokens, and a grammar must not spell text with them.

        Args:
            tokenizer: The decoded file, or its text.
            vocab_size: Width of the logits; defaults to the highest id + 1.
            stop_token_ids: The end-of-text ids.

        Raises:
            ValueError: The file is no byte-level BPE tokenizer.
        """
        data: Mapping[str, Any] = json.loads(tokenizer) if isinstance(tokenizer, str) else tokenizer
        model = data.get("model", {})
        if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(data.get("decoder")):
            raise ValueError(
                "the tokenizer is not byte-level BPE (`model.type` BPE with a ByteLevel decoder); "
                "pass the bytes of its tokens to `Vocabulary` instead"
            )
        added = {entry["id"]: entry["content"] for entry in data.get("added_tokens", ())}
        vocab: Mapping[str, int] = model["vocab"]
        size = max([*vocab.values(), *added], default=-1) + 1
        if vocab_size is not None:
            size = min(size, vocab_size)
        tokens = [b""] * size
        decode = {ord(char): byte for byte, char in enumerate(byte_level_alphabet())}
        for text, token_id in vocab.items():
            if token_id < size and token_id not in added:
                tokens[token_id] = bytes(decode[ord(char)] for char in text)
        for token_id, text in added.items():
            if token_id < size:
                tokens[token_id] = text.encode()
        return cls(
            tokens,
            vocab_size=vocab_size,
            stop_token_ids=stop_token_ids,
            special_token_ids=[i for i in added if i < size],
        )

    @property
    def num_mask_words(self) -> int:
        """Number of int32 words of one mask row."""
        return -(-self.vocab_size // 32)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that a compiled grammar depends on."""
        digest = hashlib.sha256()
        digest.update(
            repr((self.vocab_size, self.stop_token_ids, sorted(self.special_token_ids))).encode()
        )
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little"))
            digest.update(token)
        return digest.hexdigest()

    def view(self, name: VocabularyView) -> list[bytes]:
        """Returns the bytes of every token as grammars of one family see them."""
        if name == "full":
            return list(self.tokens)
        hidden: list[bytes] = list(self.tokens)
        for token_id, token in enumerate(self.tokens):
            if token_id in self.special_token_ids or SURROGATE.search(token):
                hidden[token_id] = UNMATCHABLE + token
        if name == "json":
            for token_id, token in enumerate(self.tokens):
                if not FORBIDDEN_IN_JSON.isdisjoint(token):
                    hidden[token_id] = UNMATCHABLE + token
        return hidden

    def tokenizer_info(self, view: VocabularyView) -> "xgrammar.TokenizerInfo":
        """Returns xgrammar's form of a view, built on the first call (0.3 s for 129,280 tokens)."""
        with self._lock:
            if view not in self._infos:
                import xgrammar

                self._infos[view] = xgrammar.TokenizerInfo(
                    self.view(view),
                    xgrammar.VocabType.RAW,
                    vocab_size=self.vocab_size,
                    stop_token_ids=list(self.stop_token_ids),
                )
            return self._infos[view]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves what cannot travel to another process."""
        return {
            "tokens": self.tokens,
            "vocab_size": self.vocab_size,
            "stop_token_ids": self.stop_token_ids,
            "special_token_ids": self.special_token_ids,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the fields as they were checked before."""
        self.__dict__.update(state, _infos={}, _lock=threading.Lock())


def byte_level_alphabet() -> list[str]:
    """Returns the character that byte-level BPE writes for each byte (GPT-2 `bytes_to_unicode`)."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = (chr(0x100 + i) for i in range(256))
    return [chr(byte) if byte in kept else next(shifted) for byte in range(256)]
