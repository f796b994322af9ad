"""What the kernels of entries are given: views of rows, slots and pools; what they refuse."""

import pytest
import torch

from di_kernels import RecordPool, UnsupportedLayoutError, UnsupportedShapeError, backends, ops
from di_kernels.ops.records import pool_layout
from di_kernels.tile import toolchain
from di_kernels.tile.catalogue import kernels
from di_kernels.tile.toolchain import ARCHITECTURES
from di_kernels.tile.views import plain_places, record_places, record_views, row_units, words_of

SERVED = (
    "mxfp8_quantize", "mxfp8_fake_quantize", "mxfp4_quantize", "mxfp4_fake_quantize",
    "nvfp4_quantize", "nvfp4_fake_quantize", "rms_norm", "apply_rope", "write_records",
    "read_records", "norm_rope_write", "compress_entries",
)  # fmt: skip
HOPPER = ("cuda", (9, 0))


@pytest.fixture
def tools(monkeypatch):
    """As on a machine that has TileLang and nvcc."""
    real = toolchain.importlib.util.find_spec
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: real("json"))
    toolchain.missing_tools.cache_clear()
    yield
    toolchain.missing_tools.cache_clear()


def test_every_kernel_is_declared_for_every_architecture():
    ours = [kernel for kernel in kernels().values() if set(kernel.ops) & set(SERVED)]
    assert {op for kernel in ours for op in kernel.ops} == set(SERVED)
    assert all(kernel.architectures == ARCHITECTURES for kernel in ours)


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((3, 64), lambda x: x),
        ((3, 96), lambda x: x[:, 32:]),  # columns of a wider matrix
        ((3, 5, 16), lambda x: x[:, :-1]),
        ((3, 97), lambda x: x[:, :64]),  # a stride that is no whole unit
        ((3, 97), lambda x: x[:, 1:65]),
        ((64, 3), lambda x: x.T),
        ((1, 64), lambda x: x.expand(3, 64)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_units_of_rows_are_where_the_kernel_looks(shape, view, dtype):
    rows = view(torch.randn(shape).to(dtype))
    units, stride = row_units(rows)
    per_unit = 16 // rows.element_size()
    width = rows[0].numel() // per_unit
    assert units.shape[1] == per_unit
    for row in range(len(rows)):
        got = units[row * stride : row * stride + width].flatten()
        assert torch.equal(got, rows[row].flatten())


def test_columns_of_a_wider_matrix_are_not_copied():
    wide = torch.randn(4, 1792, dtype=torch.bfloat16)
    units, stride = row_units(wide[:, 1280:])
    assert units.data_ptr() == wide[:, 1280:].data_ptr()
    assert stride == 224


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_slots_are_read_as_words(dtype):
    slots = torch.tensor([3, -1, 70_000 if dtype != torch.int16 else 7], dtype=dtype)
    words, step = words_of(slots)
    assert words[::step].tolist() == slots.tolist()
    strided, step = words_of(torch.stack((slots, slots + 1), dim=1)[:, 1])
    assert strided[::step].tolist() == (slots + 1).tolist()


@pytest.mark.parametrize(
    ("record_format", "dim", "entries", "stride", "section"),
    [("mxfp8", 512, 1, 528, 0), ("nvfp4", 512, 64, 114_048, 27_136), ("mxfp8", 512, 8, 4320, 32),
     ("index_mxfp4", 128, 64, 114_048, 22_784)],
)  # fmt: skip
def test_codes_and_scales_are_where_the_pool_has_them(record_format, dim, entries, stride, section):
    slots = torch.tensor([0, entries // 2 + 1, 3 * entries - 1])
    values = torch.randn(3, dim)
    pool = RecordPool(torch.zeros(3, stride, dtype=torch.uint8), record_format, dim, entries,
                      section)  # fmt: skip
    ops.write_records(pool, slots, values)
    quantise = {"mxfp8": ops.mxfp8_quantize, "nvfp4": ops.nvfp4_quantize}
    codes, scales = quantise.get(record_format, ops.mxfp4_quantize)(values)
    units, raw = record_views(pool)
    per_block, code_start, code_step, scale_start, scale_step = record_places(pool)
    for row, slot in enumerate(slots.tolist()):
        block, entry = divmod(slot, per_block)
        first = code_start + entry * code_step
        stored = units[block, first : first + dim // 16].reshape(-1).view(torch.uint8)
        assert torch.equal(stored, codes[row].view(torch.uint8))
        first = scale_start + entry * scale_step
        assert torch.equal(
            raw[block, first : first + scales.shape[1]], scales[row].view(torch.uint8)
        )


def test_plain_rows_are_where_the_pool_has_them():
    pool = RecordPool(torch.randn(3, 5, 8), "plain", 8, 3, 1)
    units, (entries, stride, start) = plain_places(pool)
    slots = torch.tensor([0, 4, 8])
    for slot, row in zip(slots.tolist(), pool.read(slots, torch.float32), strict=True):
        first = slot // entries * stride + start + slot % entries * 2
        assert torch.equal(units[first : first + 2].flatten().view(torch.float32), row)


def test_layouts_say_what_keeps_a_pool_from_the_kernels():
    def named(stride, offset=0, dtype=torch.bfloat16, record_format="nvfp4"):
        buffer = torch.zeros(2, stride, dtype=torch.uint8)
        return pool_layout(RecordPool(buffer, record_format, 512, 1, offset), dtype)

    assert named(288) == named(304, 16) == "nvfp4 records of bfloat16"
    assert named(300) == named(320, 8) == "nvfp4 records of bfloat16, not in 16-byte units"
    assert named(288, dtype=torch.float32) == "nvfp4 records of float32"
    shifted = torch.zeros(8 + 2 * 288, dtype=torch.uint8)[8:].view(2, 288)
    layout = pool_layout(RecordPool(shifted, "nvfp4", 512), torch.bfloat16)
    assert layout.endswith("not in 16-byte units")
    plain = RecordPool(torch.zeros(4, 8), "plain", 8)
    assert pool_layout(plain, torch.float32) == "plain records of float32"
    assert pool_layout(plain, torch.bfloat16) == "plain records of bfloat16 in float32"


@pytest.mark.usefixtures("tools")
def test_sizes_and_layouts_are_refused_by_name():
    (backend, _) = backends("norm_rope_write")
    refusal = backend.refusal("norm_rope_write", *HOPPER, torch.bfloat16, {"head_dim": 576})
    assert isinstance(refusal, UnsupportedShapeError)
    assert "head_dim <= 512 and head_dim % 32 == 0 (got 576)" in str(refusal)
    refusal = backend.refusal(
        "norm_rope_write", *HOPPER, torch.bfloat16, layout="plain records of bfloat16"
    )
    assert isinstance(refusal, UnsupportedLayoutError)
    assert "serves mxfp8 records of bfloat16 or nvfp4" in str(refusal)
    (backend, _) = backends("compress_entries")
    refusal = backend.refusal("compress_entries", *HOPPER, torch.float32, {"ratio": 4})
    assert "ratio >= 2 and ratio <= 2 (got 4)" in str(refusal)
