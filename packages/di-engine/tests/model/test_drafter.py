"""The drafter's blocks: many requests at once, context that was taken back, too little of it."""

import numpy as np
import pytest
import torch

from di_engine.cache import Cache
from di_engine.checkpoint import dummy_source
from di_engine.errors import ConfigError
from di_engine.model import Backbone, Numerics, RequestRows, StepBatch
from di_engine.model.drafter import Drafter, DraftingModel

BLOCK = 4
WINDOW = 8
DRAFTER = {
    "num_nextn_predict_layers": 2,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
    "dspark_block_size": BLOCK,
    "dspark_target_layer_ids": [3, 5],
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}


class Drafting:
    """Requests of one model and drafter; request i has state slot i."""

    def __init__(self, model: DraftingModel, num_requests: int, lookahead: int = 0) -> None:
        self.model = model
        self.cache = Cache.allocate(
            model.backbone.config,
            model.backbone.numerics,
            num_blocks=num_requests,
            num_state_slots=num_requests,
            lookahead=lookahead,
            with_drafter=True,
        )

    def run(self, *chunks: tuple[int, list[int], int]) -> None:
        """One step of (request, all its tokens so far, how many of them are in the caches)."""
        rows = [
            RequestRows(
                token_ids=tokens[start:],
                num_computed=start,
                block_table=[request],
                state_slot=request,
                history=tokens[:start],
            )
            for request, tokens, start in chunks
        ]
        self.model.forward(StepBatch.build(rows, ngram_size=3), self.cache)

    def draft(self, requests: list[int], anchors: list[int], positions: list[int], starts=None):
        block = self.model.drafter.run(
            torch.tensor(anchors),
            torch.tensor(positions),
            torch.tensor(requests),
            torch.tensor(starts or [0] * len(requests)),
            self.cache,
        )
        return block.hidden, block.base_logits


@pytest.fixture(scope="module", params=["float32-compute", "native-packed"])
def model(request, kit):
    is_native = request.param == "native-packed"
    config = kit.make_config(is_quantized=is_native, **DRAFTER)
    storage = "packed" if is_native else "compute"
    numerics = Numerics("native" if is_native else "float32", storage, deterministic=True)
    source = dummy_source(config, seed=3, parts=("text", "drafter"))
    backbone = Backbone.load(config, source, numerics, token_map=np.arange(config.vocab_size))
    return DraftingModel(backbone, Drafter.load(config, source, backbone))


def test_blocks_of_a_batch_are_the_blocks_alone(kit, model):
    lengths = [1, 3, WINDOW, 30]
    prompts = [kit.tokens(i, length) for i, length in enumerate(lengths)]
    together = Drafting(model, len(prompts))
    together.run(*[(i, prompt, 0) for i, prompt in enumerate(prompts)])
    hidden, logits = together.draft([3, 1, 0, 2], [7, 8, 9, 10], [30, 3, 1, WINDOW])
    for row, (request, anchor) in enumerate([(3, 7), (1, 8), (0, 9), (2, 10)]):
        alone = Drafting(model, 1)
        alone.run((0, prompts[request], 0))
        one_hidden, one_logits = alone.draft([0], [anchor], [lengths[request]])
        assert torch.equal(hidden[row], one_hidden[0])
        assert torch.equal(logits[row], one_logits[0])


def test_a_prompt_in_chunks_leaves_the_same_context(kit, model):
    prompt = kit.tokens(5, 30)
    whole, chunked = Drafting(model, 1), Drafting(model, 1)
    whole.run((0, prompt, 0))
    for start, end in ((0, 11), (11, 12), (12, 30)):
        chunked.run((0, prompt[:end], start))
    for one, other in zip(whole.draft([0], [4], [30]), chunked.draft([0], [4], [30]), strict=True):
        assert torch.equal(one, other)


def test_rejected_rows_leave_no_trace_in_the_context(kit, model):
    prompt = kit.tokens(6, 20)
    plain = Drafting(model, 1, lookahead=BLOCK)
    plain.run((0, prompt, 0))
    plain.run((0, [*prompt, 5], 20))
    guessed = Drafting(model, 1, lookahead=BLOCK)
    guessed.run((0, prompt, 0))
    guessed.run((0, [*prompt, 5, 90, 91, 92, 93], 20))
    for one, other in zip(plain.draft([0], [6], [21]), guessed.draft([0], [6], [21]), strict=True):
        assert torch.equal(one, other)


def test_context_before_the_window_start_is_not_read(kit, model):
    drafting = Drafting(model, 1)
    drafting.run((0, kit.tokens(7, 12), 0))
    before = drafting.draft([0], [6], [12], [9])
    ring_len = drafting.cache.layout.ring_len
    for layer in model.drafter.layer_ids:
        for position in range(12 - WINDOW, 9):
            drafting.cache.rings[layer, position % ring_len].view(torch.uint8).fill_(0x2A)
    for one, other in zip(before, drafting.draft([0], [6], [12], [9]), strict=True):
        assert torch.equal(one, other)


def test_every_row_sees_the_whole_block(kit, model):
    """Not causal inside the block: the first row changes with the noise behind it."""
    drafting = Drafting(model, 1)
    drafting.run((0, kit.tokens(8, 12), 0))
    hidden, _ = drafting.draft([0], [6], [12])
    drafter = model.drafter
    size = drafter.block_size
    drafter.block_size, drafter.row_offsets = size - 1, drafter.row_offsets[:-1]
    try:
        shorter, _ = drafting.draft([0], [6], [12])
    finally:
        drafter.block_size, drafter.row_offsets = size, torch.arange(size)
    assert not torch.equal(hidden[0, 0], shorter[0, 0])


def test_a_model_without_drafter_says_so(kit):
    config = kit.make_config()
    source = dummy_source(config)
    backbone = Backbone.load(config, source, Numerics("float32"), token_map=np.arange(96))
    with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
        Drafter.load(config, source, backbone)
