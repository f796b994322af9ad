"""Stand-ins for `flash_mla` and `deep_gemm`: their signatures, argument checks and formulas.

A module is generated from `signatures.json`, which was read out of the published source archives
(`tools/read_sm100_signatures.py`); a call the real function could not take is a `TypeError`. The
functions that adapters call also hold the checks at the head of the real ones and compute what the
libraries document, in float64 on a CPU. What nobody may read is NaN.
"""

import importlib.machinery
import importlib.metadata
import inspect
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from di_kernels.sm100 import libraries

SIGNATURES = json.loads((Path(__file__).parent / "signatures.json").read_text(encoding="utf-8"))
ALIGNMENT = 128
_E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(autouse=True)
def fresh_libraries():
    libraries.problem_with.cache_clear()
    yield
    libraries.problem_with.cache_clear()


@pytest.fixture
def flash_mla(monkeypatch):
    return install(monkeypatch, "flash_mla")


@pytest.fixture
def deep_gemm(monkeypatch):
    return install(monkeypatch, "deep_gemm")


@pytest.fixture
def signatures():
    return SIGNATURES


def install(monkeypatch, name):
    """Makes the stand-in importable, as its distribution brings it; returns it."""
    facts = SIGNATURES[name]
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.calls = []
    for function, parameters in facts["functions"].items():
        setattr(module, function, _function(module, function, parameters))
    real = importlib.metadata.version

    def installed(distribution):
        return facts["version"] if distribution == facts["distribution"] else real(distribution)

    monkeypatch.setattr(importlib.metadata, "version", installed)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _function(module, name, parameters):
    signature = inspect.Signature([_parameter(parameter) for parameter in parameters])

    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        module.calls.append((name, dict(bound.arguments)))
        return IMPLEMENTATIONS[name](**bound.arguments)

    call.__name__ = name
    call.__signature__ = signature
    return call


def _parameter(parameter):
    name = parameter["name"]
    if name.startswith("**"):
        return inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD)
    if name.startswith("*"):
        return inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL)
    default = parameter.get("default", inspect.Parameter.empty)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


# --- flash_mla 1.0.0 ---


class SchedulerMetadata:
    """What `get_mla_metadata` gives; the first call that takes it fixes the shapes."""

    shapes = None


def get_mla_metadata(args, kwargs):
    return SchedulerMetadata(), None


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits,
    softmax_scale, causal, is_fp8_kvcache, indices, attn_sink, extra_k_cache,
    extra_indices_in_kvcache, topk_length, extra_topk_length, enable_batch_invariant,
):  # fmt: skip
    assert isinstance(tile_scheduler_metadata, SchedulerMetadata)
    assert num_splits is None
    assert not causal
    assert is_fp8_kvcache
    batch, queries, heads, head_dim = q.shape
    assert q.dtype is torch.bfloat16
    assert q.stride(-1) == 1
    assert heads in (64, 128)
    assert head_dim == head_dim_v == 512
    assert batch > 0
    assert queries > 0
    # The kernel that plans splits keeps 4 words per request and one more in shared memory.
    assert (4 * batch + 1) * 4 <= 227 << 10
    shapes = (q.shape, k_cache.shape[1], indices.shape, enable_batch_invariant)
    assert tile_scheduler_metadata.shapes in (None, shapes)
    tile_scheduler_metadata.shapes = shapes
    assert (extra_k_cache is None) == (extra_indices_in_kvcache is None)
    sources = [(k_cache, indices)]
    if extra_k_cache is not None:
        sources.append((extra_k_cache, extra_indices_in_kvcache))
    keys, valid = [], []
    for position, (cache, slots) in enumerate(sources):
        _check_cache(cache, may_be_fp4=position == 1)
        assert slots.dtype is torch.int32
        assert slots.stride(-1) == 1
        assert slots.shape[:2] == (batch, queries)
        assert slots.shape[2] > 0
        assert slots.shape[2] % 64 == 0
        keys.append(_records(cache, slots))
        valid.append(slots != -1)
    if attn_sink is not None:
        assert attn_sink.dtype is torch.float32
        assert attn_sink.is_contiguous()
        assert attn_sink.shape == (heads,)
    assert topk_length is None
    assert extra_topk_length is None
    out, lse = _attend(q, torch.cat(keys, 2), torch.cat(valid, 2), softmax_scale, attn_sink)
    return out.to(torch.bfloat16), lse.transpose(1, 2)


def _check_cache(cache, *, may_be_fp4):
    width = cache.shape[3]
    assert cache.dtype is torch.uint8
    assert cache.shape[2] == 1
    assert width == 528 or (may_be_fp4 and width == 288)
    assert cache.stride(3) == 1
    assert cache.stride(1) == width
    # Records are rows of a tensor map: blocks are whole rows apart, the base is aligned.
    assert cache.stride(0) % width == 0 or cache.shape[0] == 1
    assert cache.data_ptr() % 16 == 0


def _records(cache, slots):
    """Values (batch, queries, keys, 512) of slots; any slot but -1 is taken as it is."""
    picked = slots.clamp_min(0).long()
    page = cache.shape[1]
    rows = cache[picked // page, picked % page, 0]
    if rows.shape[-1] == 528:
        codes = rows[..., :512].view(torch.float8_e4m3fn).double()
        scale = torch.exp2(rows[..., 512:].double() - 127)
        return codes * scale.repeat_interleave(32, -1)
    low, high = rows[..., :256] & 15, rows[..., :256] >> 4
    codes = _E2M1.double()[torch.stack((low, high), -1).flatten(-2).long()]
    scale = rows[..., 256:].contiguous().view(torch.float8_e4m3fn).double()
    return codes * scale.repeat_interleave(16, -1)


def _attend(q, keys, valid, scale, sink):
    scores = torch.einsum("bqhd,bqkd->bqhk", q.double(), keys) * scale
    scores = scores.masked_fill(~valid.unsqueeze(2), -torch.inf)
    lse = scores.logsumexp(-1)
    has_keys = valid.any(-1)[..., None, None]
    out = torch.softmax(scores, -1) @ keys.nan_to_num()
    if sink is not None:
        out = out * torch.sigmoid(lse - sink.double()).unsqueeze(-1)
    return torch.where(has_keys, out, 0), torch.where(has_keys[..., 0], lse, torch.inf)


# --- deep_gemm 2.8.2 ---


def fp8_gemm_nt(
    a, b, d, c, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast, alpha, epilogue
):
    (rows, rows_scale), (matrix, matrix_scale) = a, b
    (m, k), (n, k_of_b) = rows.shape, matrix.shape
    assert rows.dtype is matrix.dtype is torch.float8_e4m3fn
    assert k == k_of_b
    assert d.shape == (m, n)
    assert d.dtype in (torch.bfloat16, torch.float32)
    assert c is None
    assert alpha is None
    _check_recipe(recipe, recipe_a, recipe_b)
    for tensor in (rows, matrix, d):
        _check_map(tensor)
    wide = _dequantised(rows.double(), rows_scale) @ _dequantised(matrix.double(), matrix_scale).T
    d.copy_(wide)


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a, b, d, grouped_layout, recipe, recipe_a, recipe_b, compiled_dims, disable_ue8m0_cast,
    use_psum_layout, ensure_zero_padding, expected_m_for_psum_layout, epilogue,
):  # fmt: skip
    (rows, rows_scale), (matrices, matrices_scale) = a, b
    m, k = rows.shape
    groups, n, half = matrices.shape
    assert rows.dtype is torch.float8_e4m3fn
    assert matrices.dtype is torch.int8
    assert k == 2 * half
    # Unpacked FP4 wants whole lines of 64 bytes.
    assert k % 128 == 0
    assert d.shape == (m, n)
    assert d.dtype is torch.bfloat16
    assert use_psum_layout
    assert grouped_layout.shape == (groups,)
    assert grouped_layout.dtype is torch.int32
    assert grouped_layout.is_contiguous()
    _check_recipe(recipe, recipe_a, recipe_b)
    for tensor in (rows, matrices, d):
        _check_map(tensor)
    low, high = matrices & 15, (matrices >> 4) & 15
    values = _E2M1.double()[torch.stack((low, high), -1).flatten(-2).long()]
    dense = _dequantised(values, matrices_scale)
    wide_rows = _dequantised(rows.double(), rows_scale)
    d.fill_(math.nan)
    end = 0
    for group, stop in enumerate(grouped_layout.tolist()):
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = stop
        assert start <= end <= m
        d[start:end] = wide_rows[start:end] @ dense[group].T
        if ensure_zero_padding:
            d[end : -(-end // ALIGNMENT) * ALIGNMENT] = 0


def _check_recipe(recipe, recipe_a, recipe_b):
    # Packed scales are one per row; the products here have groups of 32.
    assert tuple(recipe) == (1, 1, 32)
    assert recipe_a is None
    assert recipe_b is None


def _check_map(tensor):
    """What a tensor map asks of every operand: a contiguous last dimension, multiples of 16."""
    assert tensor.stride(-1) == 1
    assert tensor.data_ptr() % 16 == 0
    assert tensor.stride(-2) * tensor.element_size() % 16 == 0


def _dequantised(values, packed):
    """Values times their packed scales: byte j of word w belongs to columns 32 (4 w + j) .."""
    *leading, rows, columns = values.shape
    assert packed.dtype is torch.int32
    assert packed.shape == (*leading, rows, -(-columns // 128))
    assert packed.stride(-2) == 1 or rows == 1
    assert packed.stride(-1) >= -(-rows // 4) * 4
    assert packed.stride(-1) % 4 == 0
    assert packed.data_ptr() % 16 == 0
    if leading:
        assert packed.stride(-3) == packed.stride(-1) * packed.shape[-1]
    exponents = torch.stack([(packed >> (8 * j)) & 0xFF for j in range(4)], -1).flatten(-2)
    scale = torch.exp2(exponents.double() - 127)
    return values * scale.repeat_interleave(32, -1)[..., :columns]


def get_mk_alignment_for_contiguous_layout():
    return ALIGNMENT


IMPLEMENTATIONS = {
    "flash_mla_with_kvcache": flash_mla_with_kvcache,
    "fp8_gemm_nt": fp8_gemm_nt,
    "get_mk_alignment_for_contiguous_layout": get_mk_alignment_for_contiguous_layout,
    "get_mla_metadata": get_mla_metadata,
    "m_grouped_fp8_fp4_gemm_nt_contiguous": m_grouped_fp8_fp4_gemm_nt_contiguous,
}
