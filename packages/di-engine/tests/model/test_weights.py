"""Weights: formats, packed and expanded, what is missing."""

import pytest
import torch

from di_engine.errors import CheckpointError
from di_engine.model import Backbone, Numerics


@pytest.mark.parametrize("arithmetic", ["float32", "native"])
def test_packed_weights_compute_what_expanded_ones_do(kit, arithmetic):
    config = kit.make_config(is_quantized=True)
    numerics = Numerics(arithmetic, deterministic=True)
    prompt = kit.tokens(40, 12)
    expanded = kit.load(config, numerics)
    packed = kit.load(config, numerics, keep_packed=True)
    want = kit.runner(expanded).feed(prompt, [12])
    assert torch.equal(kit.runner(packed).feed(prompt, [12]), want)
    assert not isinstance(packed.layers[0].attention.wq_b.weight, torch.Tensor)
    assert not isinstance(packed.layers[0].experts.w13, torch.Tensor)


def test_native_arithmetic_quantises_inputs_of_quantised_matrices_only(kit):
    native = Numerics("native")
    quantised = kit.load(kit.make_config(is_quantized=True), native).layers[1]
    plain = kit.load(kit.make_config(), native).layers[1]
    assert quantised.attention.wq_b.quantize_input
    assert quantised.experts.quantizes_routed
    assert not quantised.attention.compressor.index_project.quantize_input
    assert not plain.attention.wq_b.quantize_input
    assert not plain.experts.quantizes_routed


def test_a_missing_tensor_is_named(kit):
    config = kit.make_config(engram_layer_ids=[], engram_num_embeddings=[])
    source = kit.source(config)
    del source.tensors["layers.3.attn.q_norm.weight"]
    with pytest.raises(CheckpointError, match=r"no tensor `layers\.3\.attn\.q_norm\.weight`"):
        Backbone.load(config, source, Numerics("float32"))


def test_half_quantised_neighbours_are_refused(kit):
    config = kit.make_config(is_quantized=True, engram_layer_ids=[], engram_num_embeddings=[])
    source = kit.source(config)
    del source.tensors["layers.0.attn.wkv.scale"]
    with pytest.raises(CheckpointError, match="must all be quantised or none"):
        Backbone.load(config, source, Numerics("float32"))


def test_the_drafter_and_unused_biases_are_not_read(kit):
    config = kit.make_config(engram_layer_ids=[], engram_num_embeddings=[])
    source = kit.source(config)
    read = []
    take = source.get

    def get(name):
        read.append(name)
        return take(name)

    source.get = get
    Backbone.load(config, source, Numerics("float32"))
    unread = set(source.names()) - set(read)
    assert {name.rsplit(".", 1)[-1] for name in unread} == {"bias_vl"}
