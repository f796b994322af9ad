import pytest
import torch

from di_kernels import ops


def numbers(*values):
    return torch.tensor(values, dtype=torch.int64)


def test_drafts_are_accepted_while_they_equal_the_target():
    got = ops.verify_drafts(
        numbers(5, 6, 7, 8, 9, 1),
        torch.zeros(6, dtype=torch.uint8),
        numbers(5, 0, 7, -1, 9, -1),
        numbers(0, 4, 6),
        width=5,
    )
    assert got.token_ids.tolist() == [[5, 6, -1, -1, -1], [9, 1, -1, -1, -1]]
    assert got.num_accepted.tolist() == [1, 1]
    assert got.num_emitted.tolist() == [2, 2]
    assert got.status.tolist() == [0, 0]


def test_a_bad_row_ends_a_request_and_is_reported():
    status = torch.tensor([0, 1, 0, 3], dtype=torch.uint8)
    got = ops.verify_drafts(
        numbers(5, -1, 7, -1), status, numbers(5, 6, 7, -1), numbers(0, 3, 4), width=3
    )
    assert got.token_ids.tolist() == [[5, -1, -1], [-1, -1, -1]]
    assert got.num_accepted.tolist() == [1, 0]
    assert got.num_emitted.tolist() == [1, 0]
    assert got.status.tolist() == [1, 3]


def test_no_requests():
    nothing = numbers()
    got = ops.verify_drafts(nothing, nothing.to(torch.uint8), nothing, numbers(0), width=6)
    assert got.token_ids.shape == (0, 6)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="expected `width` of at least 1"):
        ops.verify_drafts(
            numbers(1), torch.zeros(1, dtype=torch.uint8), numbers(1), numbers(0, 1), width=0
        )
