# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202
# (TileLang parses the macros below as its own language.)
"""What a warp of the radix selection does with its scores and keys.

A warp's keys are those it has packed, or all its scores where they were too many to pack. `mine`
has the place of its first key in `values`, how many there are, and how many parts of its run must
be loaded again for them. `range_` has the keys still in question, from the least to the greatest.
"""

from collections.abc import Callable

import tilelang.language as T

from di_kernels.tile.select_steps import BINS, LOOK, PACKED, Selection, loading


def score_steps(shape: Selection) -> tuple[Callable[..., None], Callable[..., None]]:
    """Macros of step 1: count the best scores, then pack the scores from a bound up."""
    start_loads, finish_loads = loading(shape)

    @T.macro
    def load_best(scores, values, run, part, count, best):
        if not shape.is_kept:
            start_loads(scores, values, run, part, count)
            finish_loads(values, count)
        T.call_extern(
            "handle",
            f"di_best_of_fours<{shape.looks}>",
            T.address_of(values[T.get_thread_binding() // 32, 0]),
            count[0],
            T.access_ptr(best, "w"),
        )

    @T.macro
    def count_score(counts, score, is_counted):
        T.call_extern("handle", "di_count_score", T.address_of(counts[0]), score, is_counted)

    @T.macro
    def count_scores(scores, values, run, parts, count, best, counts):
        lane = T.get_thread_binding() % 32
        largest = T.alloc_local((1,), "float32")
        largest[0] = -T.infinity("float32")
        for part in T.serial(parts):
            load_best(scores, values, run, part, count, best)
            for look in T.unroll(shape.looks):
                if shape.counts_fours:
                    count_score(counts, best[look], look * LOOK + lane * 4 < count[0])
                else:
                    largest[0] = T.max(largest[0], best[look])
        if not shape.counts_fours:
            count_score(counts, largest[0], run[1] + lane * 4 < T.min(run[2], run[3]))

    @T.macro
    def pack(scores, values, run, parts, count, best, places, low, mine):
        warp = T.get_thread_binding() // 32
        size = T.alloc_local((1,), "uint32")
        bound = T.alloc_local((1,), "float32")
        bound[0] = T.call_extern("float32", "di_score_of", low)
        size[0] = T.uint32(0)
        for part in T.serial(parts):
            if not shape.is_kept:
                load_best(scores, values, run, part, count, best)
            size[0] = T.call_extern(
                "uint32",
                f"di_pack<{shape.looks}>",
                T.address_of(values[warp, 0]),
                count[0],
                T.access_ptr(best, "r"),
                bound[0],
                part * shape.keys,
                size[0],
                T.address_of(values[warp, shape.keys]),
                T.address_of(places[warp, 0]),
            )
        T.call_extern("handle", "__syncwarp")
        mine[0] = 0
        mine[1] = count[0]
        mine[2] = 0 if shape.is_kept else parts
        if size[0] <= PACKED:
            mine[0] = shape.keys
            mine[1] = T.cast(size[0], "int32")
            mine[2] = 0

    return count_scores, pack


def key_steps(shape: Selection) -> tuple[Callable[..., None], ...]:
    """Macros of steps 2 and 3: count keys in bins, number them, write the chosen ones."""
    start_loads, finish_loads = loading(shape)

    @T.macro
    def load_again(scores, values, run, part, mine):
        count = T.alloc_local((1,), "int32")
        if not shape.is_kept and mine[2] > 0:
            start_loads(scores, values, run, part, count)
            finish_loads(values, count)
            mine[1] = count[0]

    @T.macro
    def read_key(values, step, mine, key):
        """The lane's key of a step, 0 where there is none."""
        warp, lane = T.get_thread_binding() // 32, T.get_thread_binding() % 32
        key[0] = T.uint32(0)
        if step * 32 + lane < mine[1]:
            key[0] = T.call_extern(
                "uint32", "di_score_key", values[warp, mine[0] + step * 32 + lane]
            )

    @T.macro
    def count_keys(scores, values, run, mine, range_, shift, counts):
        key = T.alloc_local((1,), "uint32")
        for part in T.serial(T.max(mine[2], 1)):
            load_again(scores, values, run, part, mine)
            for step in T.unroll(T.ceildiv(mine[1], 32), unroll_factor=1):
                read_key(values, step, mine, key)
                T.call_extern(
                    "handle",
                    "di_count",
                    T.address_of(counts[0]),
                    T.min((key[0] - range_[0]) >> shift[0], T.uint32(BINS - 1)),
                    key[0] >= range_[0] and key[0] <= range_[1],
                )

    @T.macro
    def number_keys(scores, values, run, mine, range_, numbers):
        """Keys of the lane above the range and in it."""
        key = T.alloc_local((1,), "uint32")
        for i in T.unroll(2):
            numbers[i] = T.uint32(0)
        for part in T.serial(T.max(mine[2], 1)):
            load_again(scores, values, run, part, mine)
            for step in T.unroll(T.ceildiv(mine[1], 32), unroll_factor=1):
                read_key(values, step, mine, key)
                numbers[0] += T.cast(key[0] > range_[1], "uint32")
                numbers[1] += T.cast(key[0] >= range_[0] and key[0] <= range_[1], "uint32")

    @T.macro
    def write_keys(scores, values, run, mine, range_, wanted, before, places, chosen):
        """Keys above the range, and in it the first that are wanted, behind those before."""
        warp, lane = T.get_thread_binding() // 32, T.get_thread_binding() % 32
        key = T.alloc_local((1,), "uint32")
        votes = T.alloc_local((2,), "uint32")
        place = T.alloc_local((2,), "uint32")
        number = T.alloc_local((1,), "int32")
        for part in T.serial(T.max(mine[2], 1)):
            load_again(scores, values, run, part, mine)
            for step in T.unroll(T.ceildiv(mine[1], 32), unroll_factor=1):
                read_key(values, step, mine, key)
                votes[0] = T.call_extern("uint32", "di_vote", key[0] > range_[1])
                votes[1] = T.call_extern(
                    "uint32", "di_vote", key[0] >= range_[0] and key[0] <= range_[1]
                )
                for i in T.unroll(2):
                    place[i] = before[i] + T.call_extern("uint32", "di_before", votes[i])
                    before[i] += T.call_extern("uint32", "__popc", votes[i])
                if key[0] > range_[1] or (key[0] >= range_[0] and place[1] < wanted[0]):
                    number[0] = part * shape.keys + step * 32 + lane
                    if mine[0] > 0:
                        number[0] = places[warp, step * 32 + lane]
                    chosen[run[0], place[0] + T.min(place[1], wanted[0])] = T.cast(
                        run[1] + number[0], "int64"
                    )

    return count_keys, number_keys, write_keys
