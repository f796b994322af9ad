"""Chained hashes of full token blocks: equal hash, equal prefix.

The scheme is the one vLLM's V1 engine made common: the hash of a block covers the hash of the block
before it, so that one look-up per block finds the longest shared prefix.
"""

import hashlib

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16


def chain_root(seed: bytes, salt: bytes) -> bytes:
    """Returns the hash that the first block of every request with this seed and salt follows.

    Args:
        seed: What must agree for records to be interchangeable: model revision, formats.
        salt: What separates tenants.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (seed, salt):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def block_hash(previous: bytes, token_ids: npt.NDArray[np.int32]) -> bytes:
    """Returns the hash of one full block.

    Args:
        previous: Hash of the block before it, or `chain_root`.
        token_ids: Token ids of the block, shape (block_size,), int32, contiguous.
    """
    return hashlib.blake2b(previous + token_ids.tobytes(), digest_size=DIGEST_BYTES).digest()


def extend_chain(
    hashes: list[bytes], root: bytes, token_ids: npt.NDArray[np.int32], block_size: int
) -> None:
    """Appends to `hashes` the hash of every full block of `token_ids` that it lacks.

    Args:
        hashes: Hashes of the leading blocks of `token_ids`; modified.
        root: Result of `chain_root`.
        token_ids: All token ids of the request so far, shape (num_tokens,), int32.
        block_size: Tokens per block.
    """
    previous = hashes[-1] if hashes else root
    for index in range(len(hashes), len(token_ids) // block_size):
        start = index * block_size
        previous = block_hash(previous, token_ids[start : start + block_size])
        hashes.append(previous)
