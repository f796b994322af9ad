"""Stand-ins for the model and the tokenizer, for tests of what is built around them."""

from di_engine.testing.byte_tokenizer import ByteTokenizer
from di_engine.testing.counting_model import CountingModel

__all__ = ["ByteTokenizer", "CountingModel"]
