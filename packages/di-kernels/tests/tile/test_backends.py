"""Who serves what, the messages where nothing does, and the choices made without a device."""

import logging

import pytest
import torch

from di_kernels import (
    BackendMissingError,
    RecordPool,
    UnsupportedDeviceError,
    UnsupportedLayoutError,
    UnsupportedShapeError,
    backends,
    is_supported,
    mxfp4_to_fragment_order,
    mxfp8_to_fragment_order,
    ops,
    use_backend,
)
from di_kernels.fragments import MXFP8FragmentWeight
from di_kernels.ops.attention import record_layout
from di_kernels.registry import get_op
from di_kernels.tile import attend, linears, plan, toolchain, views
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.catalogue.products import LINEAR_TILES, linear_sizes

SERVED = (
    "moe_experts",
    "mxfp8_linear",
    "grouped_linear",
    "sparse_attention",
    "hc_transition",
    "router_topk",
    "engram_lookup",
    "draw_tokens",
)


@pytest.fixture
def layer():
    torch.manual_seed(3)
    w13 = ops.mxfp4_weight_quantize(torch.randn(4, 256, 128) / 11)
    w2 = ops.mxfp4_weight_quantize(torch.randn(4, 128, 128) / 11)
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    indices = torch.tensor([[0, 1], [2, -1], [3, 0], [1, 1], [2, 0]])
    return x, indices, torch.rand(5, 2), w13, w2


def in_fragment_order(w13, w2):
    return mxfp4_to_fragment_order(w13, interleave_gate_up=True), mxfp4_to_fragment_order(w2)


def without_tools(monkeypatch, missing):
    """A machine that lacks a module or the compiler."""
    real = toolchain.importlib.util.find_spec
    monkeypatch.setattr(
        toolchain.importlib.util,
        "find_spec",
        lambda name: None if name == missing else (real("json") if name == "tilelang" else None),
    )
    if missing == "nvcc":
        monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    toolchain.missing_tools.cache_clear()


@pytest.fixture(autouse=True)
def fresh_tools():
    yield
    toolchain.missing_tools.cache_clear()


def test_the_reference_serves_fragment_weights_with_the_same_bits(layer):
    x, indices, weights, w13, w2 = layer
    want = ops.moe_experts(x, indices, weights, w13, w2, limit=10.0)
    got = ops.moe_experts(x, indices, weights, *in_fragment_order(w13, w2), limit=10.0)
    assert torch.equal(got, want)
    matrix = ops.mxfp8_weight_quantize(torch.randn(128, 256))
    fragments = mxfp8_to_fragment_order(matrix)
    rows = torch.randn(3, 256, dtype=torch.bfloat16)
    assert torch.equal(ops.linear(rows, fragments), ops.linear(rows, matrix))
    grouped = torch.randn(3, 2, 256, dtype=torch.bfloat16)
    assert torch.equal(ops.grouped_linear(grouped, fragments), ops.grouped_linear(grouped, matrix))


def test_falling_back_says_so_once(layer, caplog, monkeypatch):
    x, indices, weights, w13, w2 = layer
    monkeypatch.setattr(get_op("moe_experts"), "_logged", set())
    with caplog.at_level(logging.INFO, logger="di_kernels.registry"):
        for _ in range(2):
            ops.moe_experts(x, indices, weights, w13, w2, limit=10.0)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("moe_experts")]
    assert len(lines) == 1
    assert "reference on cpu" in lines[0]
    assert "needs a device of type cuda" in lines[0]


@pytest.mark.parametrize("op", SERVED)
def test_a_wrong_gpu_is_named_with_what_serves(op):
    backend = backends(op)[0]
    refusal = backend.refusal(op, "cuda", (8, 6), torch.bfloat16)
    assert isinstance(refusal, UnsupportedDeviceError)
    assert f"`{op}` backend `tilelang` needs compute capability 9.0" in str(refusal)
    assert "has: 8.6" in str(refusal)
    assert is_supported(op, "cuda", compute_capability=(8, 6))


def test_forcing_the_kernels_where_they_cannot_run_raises_with_a_hint(layer):
    x, indices, weights, w13, w2 = layer
    with use_backend("tilelang"), pytest.raises(UnsupportedDeviceError) as caught:
        ops.moe_experts(x, indices, weights, *in_fragment_order(w13, w2), limit=10.0)
    assert "needs a device of type cuda, got: cpu" in str(caught.value)
    assert "hint: leave out `use_backend`, then `reference` serves" in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "words"), [("tilelang", "module `tilelang` 0.1.15"), ("nvcc", "no CUDA compiler")]
)
def test_a_missing_tool_is_named_with_the_install_command(monkeypatch, missing, words):
    without_tools(monkeypatch, missing)
    refusal = backends("moe_experts")[0].refusal("moe_experts", "cuda", (9, 0), torch.bfloat16)
    assert isinstance(refusal, BackendMissingError)
    assert words in str(refusal)
    assert "pip install 'di-kernels[tilelang]'" in str(refusal)
    with pytest.raises(BackendMissingError, match="cannot compile"):
        toolchain.require_tools()


def test_layouts_and_sizes_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: "nvcc")
    real = toolchain.importlib.util.find_spec
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: real("json"))
    toolchain.missing_tools.cache_clear()
    backend = backends("moe_experts")[0]
    call = ("moe_experts", "cuda", (9, 0), torch.bfloat16)
    layout = "w13 in checkpoint order, w2 in checkpoint order"
    refusal = backend.refusal(*call, {}, layout=layout)
    assert isinstance(refusal, UnsupportedLayoutError)
    assert "serves w13 in interleaved fragment order" in str(refusal)
    refusal = backend.refusal(*call, {"hidden": 320, "size": 256, "experts": 8})
    assert isinstance(refusal, UnsupportedShapeError)
    assert "hidden % 256 == 0 (got 320)" in str(refusal)
    linear = backends("mxfp8_linear")[0]
    sizes = {"size": 256, "out_size": 128, "out_bytes": torch.float32.itemsize}
    refusal = linear.refusal("mxfp8_linear", *call[1:], sizes, layout="fragment order")
    assert isinstance(refusal, UnsupportedShapeError)
    assert "out_bytes <= 2 (got 4)" in str(refusal)


def test_a_constant_is_kept_but_not_from_the_capture_of_a_graph(monkeypatch):
    arguments = (5, -1, torch.int32, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    captured = views.constant(*arguments)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kept = views.constant(*arguments)
    assert captured is not kept
    assert views.constant(*arguments) is kept
    assert torch.equal(captured, kept)
    assert kept.tolist() == [-1] * 5


def test_pools_that_are_no_whole_units_have_another_layout():
    def pool(stride, offset=0):
        return RecordPool(torch.zeros(2, stride, dtype=torch.uint8), "nvfp4", 512, 1, offset)

    assert record_layout(pool(288), pool(304, 16)) == "nvfp4 + nvfp4 records"
    assert record_layout(pool(288), pool(300)).endswith("not in 16-byte units")
    assert record_layout(pool(320, 8), None).endswith("not in 16-byte units")


def cut(counts, sizes):
    """Number of tiles of every size, as the plan kernel cuts an expert's pairs."""
    large, small = sizes if len(sizes) == 2 else (sizes[0], 0)
    left = counts % large
    num_large = int((counts // large + (left > small)).sum())
    return (num_large, int(((left > 0) & (left <= small)).sum()))[: len(sizes)]


def test_the_tiles_hold_the_average_of_an_expert_and_the_lists_every_routing():
    assert plan.tile_sizes(6, 384) == (8,)
    assert plan.tile_sizes(48 * 4, 48) == (8,)
    assert plan.tile_sizes(48 * 2, 48, fp8_input=True) == (8,)
    assert plan.tile_sizes(48 * 8, 48, fp8_input=True) == (16,)
    assert plan.tile_sizes(48 * 14, 48, fp8_input=True) == (24,)
    assert plan.tile_sizes(48 * 16, 48, fp8_input=True) == (24, 16)
    assert plan.tile_sizes(48 * 17, 48, fp8_input=True) == (32, 24)
    assert plan.tile_sizes(48 * 5000, 48, fp8_input=True) == (256, 128)
    assert plan.tile_sizes(48 * 8, 48) == (16, 8)
    assert plan.tile_sizes(48 * 9, 48) == (24, 16)
    assert plan.tile_sizes(48 * 5000, 48) == (256, 128)
    generator = torch.Generator().manual_seed(0)
    for pairs, count in ((1, 8), (40, 8), (1000, 48), (5000, 48)):
        routings = [
            torch.randint(0, count, (pairs,), generator=generator).bincount() for _ in range(20)
        ]
        routings += [torch.tensor([pairs]), torch.full((count,), -(-pairs // count))]
        for sizes in ((8,), (24,), (16, 8), (32, 16), (32, 24), (64, 48), (96, 64), (256, 128)):
            bounds = plan.num_tiles(pairs, count, sizes)
            for routing in routings[: 21 if pairs % count else 22]:
                needed = cut(routing, sizes)
                assert all(have <= bound for have, bound in zip(needed, bounds, strict=True))


@pytest.mark.parametrize("fp8_input", [False, True])
def test_the_memory_that_is_handed_over_holds_the_sums_of_every_block(fp8_input):
    for rows, tiles in plan.tiles_for(fp8_input=fp8_input).items():
        room = plan.new_handover((rows,), fp8_input=fp8_input, device=torch.device("cpu")).cleared()
        assert not room.ready.any()
        for tile in tiles:
            assert tile.tokens == rows
            assert room.partial.numel() >= tile.grid * tile.weight_rows * rows
            assert room.ready.numel() >= tile.grid * tile.threads // 32


@pytest.mark.parametrize("steps", [1, 2, 5, 9, 20, 32])
@pytest.mark.parametrize("tokens", list(LINEAR_TILES))
def test_parts_cover_the_columns_and_none_is_empty(steps, tokens):
    for row_blocks in (2, 28, 80, 512):
        parts = linears.parts_for(row_blocks, 1, steps, tokens, 264)
        part_steps = -(-steps // parts)
        assert (parts - 1) * part_steps < steps <= parts * part_steps


@pytest.mark.parametrize("architecture", toolchain.ARCHITECTURES)
@pytest.mark.parametrize("tokens", list(LINEAR_TILES))
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_launched_steps_cover_the_columns(monkeypatch, architecture, tokens, batch_invariant):
    launched = {}

    def kernel_for(name, device):
        return lambda *arguments: launched.update({name: arguments})

    monkeypatch.setattr(linears, "architecture_of", lambda device: architecture)
    monkeypatch.setattr(linears, "kernel_for", kernel_for)
    columns, rows = 2048, 128
    weight = MXFP8FragmentWeight(
        torch.zeros(rows // 64, columns // 64, 1024, dtype=torch.int32),
        torch.zeros(rows // 64, columns // 64, 8, dtype=torch.int32),
    )
    x, out = (torch.zeros(tokens, 1, size, dtype=torch.bfloat16) for size in (columns, rows))
    linears.launch_tiles(x, weight, out, 132, batch_invariant=batch_invariant)
    name = linears.linear_name(tokens, is_split=not batch_invariant)
    part_steps, y = launched[name][-2:]
    part_columns = 64 * linear_sizes(tokens, architecture)[1] * part_steps
    assert (y.shape[0] - 1) * part_columns < columns <= y.shape[0] * part_columns


def test_few_rows_of_not_too_many_keys_go_by_slices():
    assert attend.goes_by_slices(1, attend.MOST_TILES)
    assert not attend.goes_by_slices(1, attend.MOST_TILES + 1)
    assert not attend.goes_by_slices(256, 2)


@pytest.mark.parametrize(
    ("rows", "columns", "of_few", "of_32"),
    [(32768, 1280, ("whole", 5), None), (8192, 4096, None, None), (5120, 8192, None, None),
     (1792, 5120, ("cluster", 3), ("cluster", 3)), (4608, 5120, None, None),
     (5120, 2304, None, None), (128, 256, ("whole", 1), None)],
)  # fmt: skip
def test_the_widest_and_the_narrowest_have_kernels_for_few_rows(rows, columns, of_few, of_32):
    def plan(num_rows, batch_invariant=False):
        plan = linears.few_rows_plan(num_rows, rows // 64, columns, 132, batch_invariant)
        return plan and tuple(plan[1:])

    assert plan(1) == plan(9) == of_few
    assert plan(32) == of_32
    assert plan(33) is None
    assert plan(1, batch_invariant=True) == ("whole", columns // 256)
    assert plan(32, batch_invariant=True) is None


def test_every_op_with_kernels_builds_for_sm100_except_where_a_reason_is_given():
    for kernel in kernels().values():
        assert "sm_90a" in kernel.architectures
        for architecture, reason in kernel.undeclared.items():
            assert architecture in toolchain.ARCHITECTURES
            assert len(reason) > 20
    for op in SERVED[:3]:
        declared = [k for k in kernels().values() if op in k.ops and "sm_100a" in k.architectures]
        assert declared
