"""What tests need, here and in engines: vocabularies, an oracle, a model that draws at random."""

from di_structured.testing.oracle import allowed_by_oracle, allowed_in_row
from di_structured.testing.schemas import BOUNDED_SCHEMAS
from di_structured.testing.simulation import Generation, generate
from di_structured.testing.vocabularies import byte_vocabulary, compile_here, synthetic_vocabulary

__all__ = [
    "BOUNDED_SCHEMAS",
    "Generation",
    "allowed_by_oracle",
    "allowed_in_row",
    "byte_vocabulary",
    "compile_here",
    "generate",
    "synthetic_vocabulary",
]
