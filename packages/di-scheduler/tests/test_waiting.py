import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from di_scheduler.request import Record, Request, Status
from di_scheduler.waiting import WaitingQueue


def record(uid, priority=0, length=1):
    request = Request(str(uid), [1])
    tokens = np.zeros(length, np.int32)
    return Record(request, str(uid), uid, (priority, uid), tokens, length, 9, ())


def test_empty_queue_has_no_head():
    queue = WaitingQueue()
    assert queue.head() is None
    with pytest.raises(IndexError, match="empty waiting queue"):
        queue.pop()


def test_removed_records_do_not_pile_up():
    queue = WaitingQueue()
    keeper = record(0, priority=-1)
    queue.push(keeper)
    for uid in range(1, 10_000):
        late = record(uid)
        queue.push(late)
        late.status = Status.FINISHED
        queue.removed(late)
    assert len(queue._heap) < 200
    assert queue.pop() is keeper


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 3), st.integers(1, 9))
    )
)
def test_queue_is_a_sorted_list(actions):
    queue, model, uid = WaitingQueue(), [], 0
    for action, priority, length in actions:
        if action == "push":
            uid += 1
            model.append(record(uid, priority, length))
            queue.push(model[-1])
        elif model:
            model.sort(key=lambda r: r.sort_key)
            if action == "pop":
                assert queue.pop() is model[0]
                model.pop(0).status = Status.RUNNING
            else:
                gone = model.pop(priority % len(model))
                gone.status = Status.FINISHED
                queue.removed(gone)
        assert len(queue) == len(model)
        assert queue.num_tokens == sum(len(r.token_ids) for r in model)
        assert {r.uid for r in queue} == {r.uid for r in model}
