"""A tokenizer whose tokens are bytes, after three special tokens."""

from __future__ import annotations

import codecs

__all__ = ["ByteTokenizer"]

_NUM_SPECIAL = 3


class _ByteStream:
    """Decodes UTF-8 one byte at a time."""

    def __init__(self, skip_special_tokens: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._skip_special_tokens = skip_special_tokens

    def push(self, token_id: int) -> str:
        """Takes a token; returns the characters that are now complete."""
        if token_id < _NUM_SPECIAL:
            special = "" if self._skip_special_tokens else f"<{token_id}>"
            return self._decoder.decode(b"", final=True) + special
        return self._decoder.decode(bytes([token_id - _NUM_SPECIAL]))

    def finish(self) -> str:
        """Returns what is left, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Token `3 + b` is byte `b`; 0, 1 and 2 begin, end and pad a text."""

    vocab_size = 256 + _NUM_SPECIAL
    bos_token_id = 0
    eos_token_id = 1

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`."""
        token_ids = [byte + _NUM_SPECIAL for byte in text.encode()]
        return [self.bos_token_id, *token_ids] if add_special_tokens else token_ids

    def token_id(self, spelling: str) -> int | None:
        """None: no token has a name."""
        return None

    def stream(self, skip_special_tokens: bool = True) -> _ByteStream:
        """A decoder for one completion."""
        return _ByteStream(skip_special_tokens)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of whole token lists."""
        stream = self.stream(skip_special_tokens)
        return "".join(map(stream.push, ids)) + stream.finish()
