import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from di_spec.sampling import Stream, counter_bits, philox4x32, row_bits, uniform53

# Philox blocks for (seed, subsequence 3 * position + c), computed from the cuRAND layout.
PUBLISHED = [
    (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8", "844515e1", "0661d677"),
    (1, 0, "e3e80670 e50a0ebc 95f222c0 b615aa27", "07071c12", "e73404cf"),
    (42, 7, "e0020480 bedb05bb ee570c01 371038e8", "f7dd2f89", "1ebff96f"),
    (1234567890123456789, 129, "73e4f3ea 249cda26 fffd4c86 3ae09b77", "eda9212f", "e0d23ffe"),
    (2**64 - 1, 1, "1d8daf79 c4d0ed03 4c195a18 9927849d", "57d4020a", "8356c2d2"),
]

seeds = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("seed", "position", "first", "second", "third"), PUBLISHED)
def test_words_are_those_of_the_published_generator(seed, position, first, second, third):
    words = counter_bits(np.uint64(seed), Stream.TARGET, 3 * position, np.arange(4))
    assert " ".join(f"{word:08x}" for word in words) == first
    for c, expected in ((1, second), (2, third)):
        assert f"{int(counter_bits(np.uint64(seed), Stream.TARGET, 3 * position + c, 0)):08x}" == (
            expected
        )


def test_known_answers_of_the_philox_paper():
    # Random123 known-answer file: philox4x32-10 of all zeros, and of the digits of pi.
    zeros = philox4x32((0, 0, 0, 0), (0, 0))
    assert [f"{int(w):08x}" for w in zeros] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    pi = philox4x32((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))
    assert [f"{int(w):08x}" for w in pi] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


@given(seeds, st.integers(0, 2**63), st.integers(1, 40), st.sampled_from(Stream), st.integers(0, 9))
def test_rows_hold_the_bits_of_single_tokens(seed, position, num_lanes, stream, offset):
    row = row_bits(
        np.array([seed], np.uint64), stream, np.array([position], np.uint64), num_lanes, offset
    )
    single = [
        int(counter_bits(np.uint64(seed), stream, np.uint64(position), lane, offset))
        for lane in range(num_lanes)
    ]
    assert row[0].tolist() == single


def test_rows_do_not_depend_on_how_they_are_cut():
    seed = np.arange(40, dtype=np.uint64)
    position = seed * np.uint64(3)
    together = row_bits(seed, Stream.TARGET, position, 5000)
    for i in range(0, 40, 7):
        alone = row_bits(seed[i : i + 1], Stream.TARGET, position[i : i + 1], 5000)
        np.testing.assert_array_equal(together[i], alone[0])


def test_offsets_per_row():
    seed = np.zeros(3, np.uint64)
    rows = row_bits(seed, Stream.DRAFT, seed, 8, np.array([0, 1, 2]))
    assert len({tuple(row) for row in rows.tolist()}) == 3


def test_purposes_seeds_positions_and_offsets_never_share_a_word_block():
    blocks = set()
    for stream in Stream:
        for seed in (0, 1, 2, 2**32, 2**63):
            for position in (0, 1, 2**32, 2**40):
                for offset in (0, 1, 5):
                    bits = row_bits(
                        np.array([seed], np.uint64),
                        stream,
                        np.array([position], np.uint64),
                        4,
                        offset,
                    )
                    blocks.add(bits.tobytes())
    assert len(blocks) == len(Stream) * 5 * 4 * 3


@pytest.mark.parametrize("vary", ["seed", "position", "offset", "stream"])
def test_uniforms_of_neighbours_are_uncorrelated(vary):
    n = 20_000
    steps = np.arange(n, dtype=np.uint64)
    if vary == "seed":
        u = uniform53(steps, Stream.ACCEPT, 5)
    elif vary == "position":
        u = uniform53(np.uint64(1), Stream.ACCEPT, steps)
    elif vary == "offset":
        u = uniform53(np.uint64(1), Stream.ACCEPT, 5, steps)
    else:
        u = np.concatenate([uniform53(np.uint64(1), s, steps[: n // 4]) for s in Stream])
    assert ((u >= 0) & (u < 1)).all()
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * n)
    for lag in (1, 2, 3, n // 4):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(n - lag)
