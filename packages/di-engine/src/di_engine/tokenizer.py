"""Text to token ids and back, for the byte-level BPE of a checkpoint.

Every token stands for a byte string, so any sequence of ids stands for bytes that are read as UTF-8
with invalid parts shown as U+FFFD. A character may be spread over several tokens; `TokenStream`
holds back the bytes of an unfinished one, so that the pieces it hands out concatenate to exactly
what `decode` gives for all ids.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from di_engine.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from di_engine.config import ModelConfig

__all__ = ["TokenStream", "Tokenizer"]

TOKENIZER_FILE = "tokenizer.json"


def _byte_characters() -> dict[str, int]:
    """Returns the byte that each character of a byte-level BPE vocabulary stands for.

    Printable Latin-1 characters stand for themselves, the remaining 68 bytes for the characters
    from U+0100 on, in ascending order (GPT-2's byte-level alphabet).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _byte_characters()


def _spelled_bytes(spelling: str) -> bytes:
    """Returns the bytes of a vocabulary entry.

    An added token with a character outside the byte alphabet stands for its own UTF-8 bytes, as in
    the `tokenizers` library's byte-level decoder.
    """
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in spelling)
    except KeyError:
        return spelling.encode("utf-8")


class Tokenizer:
    """The tokenizer of one checkpoint. Immutable after construction and safe to share.

    Attributes:
        backend: The tokenizer as the `tokenizers` library sees it.
        vocab_size: Number of ids, 0 to `vocab_size` - 1.
        bos_token_id: Id that begins a text.
        eos_token_id: Id that ends one.
        pad_token_id: Padding id.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: ModelConfig | None = None) -> None:
        """Wraps a tokenizer.

        Args:
            backend: A byte-level BPE tokenizer.
            config: Configuration of the model it serves; names the special ids and is checked
                against the vocabulary.

        Raises:
            ConfigError: The tokenizer is not byte-level, has holes in its ids, or its vocabulary is
                not that of the model.
        """
        self.backend = backend
        spellings = {token_id: text for text, token_id in backend.get_vocab(True).items()}
        self.vocab_size = len(spellings)
        problems = _check_backend(backend, spellings, config)
        if problems:
            raise ConfigError("the tokenizer cannot be used:\n  " + "\n  ".join(problems))
        self._spellings = [spellings[token_id] for token_id in range(self.vocab_size)]
        self._bytes = [_spelled_bytes(spelling) for spelling in self._spellings]
        self._special = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        )
        self.bos_token_id = config.bos_token_id if config else 0
        self.eos_token_id = config.eos_token_id if config else 1
        self.pad_token_id = config.pad_token_id if config else 2

    @classmethod
    def from_directory(cls, directory: str | Path, config: ModelConfig | None = None) -> Tokenizer:
        """Reads `tokenizer.json` of a checkpoint directory.

        Raises:
            ConfigError: The file is absent or damaged, or does not fit the model; see `Tokenizer`.
        """
        path = Path(directory) / TOKENIZER_FILE
        if not path.is_file():
            raise ConfigError(
                f"no `{TOKENIZER_FILE}` in `{directory}`; give prompts as token ids or name a "
                "tokenizer directory with `model.tokenizer`"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare `Exception` for a damaged file
            raise ConfigError(f"`{path}` is not a tokenizer file: {error}") from None
        try:
            return cls(backend, config)
        except ConfigError as error:
            raise ConfigError(f"`{path}`: {error}") from None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Returns the ids of a text; special-token strings in it become their ids.

        Args:
            text: Any text without lone surrogates.
            add_special_tokens: Whether to put the BOS id in front, as text prompts of the release
                have it.

        Raises:
            InvalidRequestError: The text holds a lone surrogate, which has no UTF-8 bytes.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the prompt has a lone surrogate at character {error.start}, which is not text; "
                "decode the input as UTF-8 first",
                param="prompt",
            ) from None
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return [self.bos_token_id, *ids] if add_special_tokens else ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids; bytes that are not UTF-8 become U+FFFD."""
        stream = self.stream(skip_special_tokens)
        pieces = [stream.push(token_id) for token_id in token_ids]
        return "".join(pieces) + stream.finish()

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """Returns a new incremental decoder."""
        return TokenStream(self, skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token, which carries no text of its own."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes a token stands for.

        Raises:
            InvalidRequestError: The id is outside the vocabulary.
        """
        self._check_id(token_id)
        return self._bytes[token_id]

    def raw_token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id, in its byte-level spelling.

        Raises:
            InvalidRequestError: The id is outside the vocabulary.
        """
        self._check_id(token_id)
        return self._spellings[token_id]

    def token_id(self, spelling: str) -> int | None:
        """Returns the id of a vocabulary entry or special token, or None."""
        found: int | None = self.backend.token_to_id(spelling)
        return found

    def _check_id(self, token_id: int) -> None:
        # A negative index would silently read from the end of the table.
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"token id: {token_id}, allowed: 0 to {self.vocab_size - 1}", param="token_ids"
            )


class TokenStream:
    """Incremental decoding of one sequence; made by `Tokenizer.stream`."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Takes the next id and returns the characters that are complete now, possibly none.

        Raises:
            InvalidRequestError: The id is outside the vocabulary; the stream is unchanged.
        """
        data = self._tokenizer.token_bytes(token_id)
        if self._skips_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Ends the sequence and returns what an unfinished character leaves: U+FFFD or nothing."""
        return self._decoder.decode(b"", True)


def _check_backend(
    backend: tokenizers.Tokenizer, spellings: dict[int, str], config: ModelConfig | None
) -> list[str]:
    problems = []
    kind = json.loads(backend.to_str())["decoder"]
    if not kind or kind.get("type") != "ByteLevel":
        found = kind.get("type") if kind else None
        problems.append(f"decoder: {found}, supported: ByteLevel (byte-level BPE)")
    size = len(spellings)
    holes = sorted(set(range(size)) - set(spellings))
    if holes:
        problems.append(f"ids {holes[:10]} of 0 to {size - 1} are not assigned")
    if config is not None and size != config.vocab_size:
        problems.append(
            f"{size} token ids, `vocab_size` of the model: {config.vocab_size}; the tokenizer "
            "belongs to another checkpoint"
        )
    return problems
