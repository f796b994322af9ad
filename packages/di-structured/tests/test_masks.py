"""Batches: rows belong to request ids, whatever the order."""

import threading
import time

import numpy as np
import pytest

from di_structured import MaskBatch, OutputSchema, allocate_masks, mask_width, masks
from di_structured.testing import allowed_in_row

OBJECT = OutputSchema.json_object()
DIGITS = OutputSchema.regex("[0-9]{3}")


def alone(session, drafts):
    rows = allocate_masks(len(drafts) + 1, session.vocab_size)
    session.fill_masks(drafts, rows)
    return rows


class Slow:
    """A session whose rows take a while, and which remembers its threads."""

    is_constrained = True

    def __init__(self, seconds):
        self.seconds = seconds
        self.threads = []

    def fill_masks(self, drafts, out, row=0):
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        self.threads.append(threading.current_thread().name)
        return len(drafts)


@pytest.mark.parametrize(("seconds", "is_shared"), [(0.004, True), (0.0, False)])
def test_other_threads_help_where_a_step_is_worth_it(seconds, is_shared):
    sessions = [Slow(seconds) for _ in range(4)]
    batch = MaskBatch(64, threads=2)
    for _ in range(2):
        batch.fill((str(number), session, []) for number, session in enumerate(sessions))
    batch.close()
    assert {session.threads[0] for session in sessions} == {threading.current_thread().name}
    assert (len({session.threads[1] for session in sessions}) == 2) == is_shared


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_equals_its_requests_alone(start, encode, vocabulary, threads, monkeypatch):
    monkeypatch.setattr(masks, "POOL_PAYS_S", 0.0)
    batch = MaskBatch(vocabulary.vocab_size, threads=threads)
    requests = [
        ("a", start(OBJECT), []),
        ("b", None, [5, 6]),
        ("c", start(DIGITS), encode("12")),
        ("d", start(OBJECT), encode('{"k":1')),
        ("e", start(DIGITS), encode("1x345")),
    ]
    batch.fill(requests)
    assert batch.row_offsets.tolist() == [0, 1, 4, 7, 14, 20]
    assert [batch.num_legal(name) for name in "abcde"] == [0, 2, 2, 6, 1]
    for name, session, drafts in requests:
        if session is None:
            assert all(len(allowed_in_row(r)) == vocabulary.vocab_size for r in batch.rows(name))
        else:
            np.testing.assert_array_equal(batch.rows(name), alone(session, drafts))
    assert batch.constrained_rows.tolist() == [0, *range(4, 20)]
    batch.close()


def test_gather_follows_the_consumers_order_and_trimmed_drafts(start, encode, vocabulary):
    batch = MaskBatch(vocabulary.vocab_size)
    requests = {
        "zero": (start(OBJECT), []),
        "two": (start(DIGITS), encode("12")),
        "free": (None, [1, 1, 1]),
        "five": (start(OBJECT), encode('{"k":')),
    }
    batch.fill((name, *rest) for name, rest in requests.items())
    bits, rows = batch.gather([("five", 2), ("free", 4), ("zero", 1), ("two", 3)])
    assert rows.tolist() == [0, 1, 6, 7, 8, 9]
    expected = [
        *alone(*requests["five"])[:2],
        *alone(*requests["zero"]),
        *alone(*requests["two"]),
    ]
    np.testing.assert_array_equal(bits, np.stack(expected))


def test_rows_of_an_earlier_step_do_not_shine_through(start, encode, vocabulary):
    batch = MaskBatch(vocabulary.vocab_size)
    batch.fill([("a", start(DIGITS), encode("12"))])
    batch.fill([("b", None, [1, 2, 3])])
    assert all(len(allowed_in_row(row)) == vocabulary.vocab_size for row in batch.bits)
    assert batch.constrained_rows.size == 0


def test_an_empty_step_has_no_rows(vocabulary):
    batch = MaskBatch(vocabulary.vocab_size).fill([])
    assert batch.bits.shape == (0, mask_width(vocabulary.vocab_size))
    assert batch.row_offsets.tolist() == [0]
    bits, rows = batch.gather([])
    assert bits.shape == (0, 9)
    assert rows.size == 0


def test_wrong_questions_are_refused(start, vocabulary):
    batch = MaskBatch(vocabulary.vocab_size)
    with pytest.raises(ValueError, match="`a` is in the batch twice"):
        batch.fill([("a", None, []), ("a", None, [])])
    batch.fill([("a", start(DIGITS), [])])
    with pytest.raises(ValueError, match="`b` was not in the batch"):
        batch.gather([("b", 1)])
    with pytest.raises(ValueError, match="has 1 mask rows, 2 were asked for"):
        batch.gather([("a", 2)])
    with pytest.raises(ValueError, match="`threads` must be at least 1"):
        MaskBatch(8, threads=0)
