import pytest
import torch

from di_kernels import ops
from di_kernels.masses import pack_bits


def entries(offsets, token_ids, values):
    return ops.TokenValues(
        torch.tensor(offsets),
        torch.tensor(token_ids, dtype=torch.int64),
        torch.tensor(values, dtype=torch.float64),
    )


def test_bias_comes_before_penalties_and_the_mask_last():
    logits = torch.tensor([[1.0, -1.0, 2.0, 3.0], [0.5, 0.5, 0.5, 0.5]])
    edited = ops.edit_logits(
        logits,
        bias=entries([0, 2, 2], [0, 3], [-3.0, 1.0]),
        penalties=ops.Penalties(
            entries([0, 3, 4], [0, 2, 3, 1], [0.0, 2.0, 1.0, 3.0]),
            torch.tensor([2.0, 1.0]).double(),
            torch.tensor([0.5, 0.25]).double(),
            torch.tensor([0.125, 0.0]).double(),
        ),
        mask_bits=pack_bits(torch.tensor([[True, True, True, False], [True] * 4])),
    )
    assert edited.dtype == torch.float64
    assert edited.tolist() == [[-4.0, -1.0, -0.125, -torch.inf], [0.5, -0.25, 0.5, 0.5]]


def test_the_input_stays_as_it_is():
    logits = torch.ones(1, 3, dtype=torch.float64)
    edited = ops.edit_logits(logits, bias=entries([0, 1], [1], [1.0]))
    assert logits.tolist() == [[1.0, 1.0, 1.0]]
    assert edited.tolist() == [[1.0, 2.0, 1.0]]


def test_a_broken_row_stays_visible_under_a_mask():
    logits = torch.tensor([[0.0, torch.nan], [0.0, torch.inf]])
    mask = pack_bits(torch.tensor([[True, False], [True, False]]))
    edited = ops.edit_logits(logits, mask_bits=mask)
    seed = torch.zeros(2, dtype=torch.int64)
    drawn = ops.draw_tokens(edited, torch.ones(2).double(), seed, seed, mask_bits=mask)
    assert drawn.status.tolist() == [1, 2]


def test_wrong_arguments_are_named():
    logits = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"invalid shape of `bias\.offsets`"):
        ops.edit_logits(logits, bias=entries([0, 1], [1], [1.0]))
    with pytest.raises(TypeError, match=r"invalid dtype of `penalties\.repetition`"):
        ops.edit_logits(
            logits,
            penalties=ops.Penalties(entries([0, 0, 1], [1], [1.0]), *(torch.ones(2),) * 3),
        )
