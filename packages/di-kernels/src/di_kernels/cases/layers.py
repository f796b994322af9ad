"""Cases of attention, its selection, hyper-connections, experts and Engram."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from di_kernels import ops
from di_kernels.cases.case import Case, Outputs, Sizes, Source, nbytes
from di_kernels.records import RecordPool, record_bytes


def cases(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    """Cases of this module for one number of rows."""
    yield from _attention(sizes, source, num_rows)
    yield from _indexer(sizes, source, num_rows)
    yield from _hyper_connections(sizes, source, num_rows)
    yield from _experts(sizes, source, num_rows)
    yield from _engram(sizes, source, num_rows)


def _attention(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    dim, entries = sizes.head_dim, sizes.entries_per_block
    num_blocks = sizes.topk // entries + 2
    width = record_bytes("nvfp4", dim)
    window = RecordPool(
        torch.zeros(sizes.window + 7, record_bytes("mxfp8", dim), dtype=torch.uint8,
                    device=source.device),
        "mxfp8", dim,
    )  # fmt: skip
    shape = (num_blocks, 32 + entries * width)
    selected = RecordPool(
        torch.zeros(shape, dtype=torch.uint8, device=source.device), "nvfp4", dim, entries, 32
    )
    for pool in (window, selected):
        slots = torch.arange(pool.num_slots, device=source.device)
        ops.write_records(pool, slots, source.normal(pool.num_slots, dim))
    q = source.normal(num_rows, sizes.heads, dim)
    sink = source.wide(sizes.heads)
    window_slots = source.integers(-1, window.num_slots, num_rows, sizes.window)
    selected_slots = source.integers(-1, selected.num_slots, num_rows, sizes.topk)
    window_slots[-1], selected_slots[-1] = -1, -1  # a row without any key
    slots = torch.cat((window_slots, selected_slots), dim=1)

    def keys(dtype: torch.dtype) -> torch.Tensor:
        parts = (window.read(window_slots, dtype), selected.read(selected_slots, dtype))
        return torch.cat(parts, dim=1)

    def sparse(rows: torch.Tensor) -> Outputs:
        out = ops.sparse_attention(
            q[rows], window, window_slots[rows], sink, selected=selected,
            selected_slots=selected_slots[rows], batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def gathered(rows: torch.Tensor) -> Outputs:
        valid = slots[rows] >= 0
        return (
            ops.sink_attention(
                q[rows], keys(q.dtype)[rows], valid, sink, batch_invariant=source.batch_invariant
            ),
        )

    def oracle() -> Outputs:
        scores = torch.einsum("thd,tkd->thk", q.double(), keys(torch.float64)) * dim**-0.5
        powers = scores.exp() * (slots >= 0).unsqueeze(1)
        total = powers.sum(-1) + sink.double().exp()
        return (torch.einsum("thk,tkd->thd", powers, keys(torch.float64)) / total.unsqueeze(-1),)

    label = f"{num_rows}x{sizes.heads}x{dim}, {sizes.window}+{sizes.topk} keys"
    gathered_bytes = num_rows * (sizes.window * record_bytes("mxfp8", dim) + sizes.topk * width)
    flops = 4 * num_rows * sizes.heads * dim * slots.shape[1]
    yield Case(
        "sparse_attention", label, source.dtype, num_rows, sparse, oracle, False,
        2 * q.nbytes + gathered_bytes, flops,
    )  # fmt: skip
    yield Case(
        "sink_attention", label, source.dtype, num_rows, gathered, oracle, False,
        2 * q.nbytes + slots.numel() * dim * q.element_size(), flops,
    )  # fmt: skip

    values, gates = source.wide(2 * num_rows, dim), source.wide(2 * num_rows, dim, scale=3)
    groups = torch.arange(2 * num_rows, device=source.device).view(-1, 2)

    def pooled(rows: torch.Tensor) -> Outputs:
        return (ops.compress_pool(values, gates, groups[rows], out_dtype=source.dtype),)

    def pooled_oracle() -> Outputs:
        share = torch.sigmoid(gates[0::2].double() - gates[1::2].double())
        return (share * values[0::2].double() + (1 - share) * values[1::2].double(),)

    moved = nbytes(values, gates) + values.nbytes // 2
    label = f"{num_rows}x2x{dim}"
    yield Case("compress_pool", label, source.dtype, num_rows, pooled, pooled_oracle, False, moved)


def _indexer(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    dim, per_block = sizes.index_dim, sizes.entries_per_block
    num_blocks = -(-sizes.entries // per_block)
    buffer_shape = (num_blocks + 1, per_block * record_bytes("index_mxfp4", dim))
    pool = RecordPool(
        torch.zeros(buffer_shape, dtype=torch.uint8, device=source.device),
        "index_mxfp4", dim, per_block,
    )  # fmt: skip
    slots = torch.arange(pool.num_slots, device=source.device)
    ops.write_records(pool, slots, source.normal(pool.num_slots, dim))
    q = source.normal(num_rows, sizes.index_heads, dim)
    weights = source.normal(num_rows, sizes.index_heads)
    table = source.permutation(num_blocks + 1)[None, :num_blocks]
    visible = source.integers(0, sizes.entries + 1, num_rows)
    visible[0] = sizes.entries
    requests = torch.zeros(num_rows, dtype=torch.int64, device=source.device)
    block_size = 8
    num_candidates = max(1, sizes.entries // block_size // 2)

    def dense_oracle() -> Outputs:
        entries = torch.arange(sizes.entries, device=source.device)[None]
        keys = pool.read(
            ops.entries_to_slots(entries, table, requests[:1], per_block)[0], torch.float64
        )
        dots = torch.einsum("thd,kd->thk", q.double(), keys).relu()
        scores = torch.einsum("th,thk->tk", weights.double(), dots)
        scores = scores * dim**-0.5 * sizes.index_heads**-0.5
        return (scores.masked_fill(entries >= visible[:, None], -torch.inf),)

    def dense(rows: torch.Tensor) -> Outputs:
        scores = ops.index_scores(
            q[rows], weights[rows], pool, table, requests[rows], visible[rows],
            max_entries=sizes.entries, batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (scores,)

    scores = dense(torch.arange(num_rows))[0]
    blocks = ops.select_candidate_blocks(
        scores, visible, block_size=block_size, num_blocks=num_candidates
    )

    def candidates(rows: torch.Tensor) -> Outputs:
        compact = ops.candidate_scores(
            q[rows], weights[rows], pool, table, requests[rows], visible[rows], blocks[rows],
            block_size=block_size, max_entries=sizes.entries,
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (compact,)

    def candidates_oracle() -> Outputs:
        full = torch.nn.functional.pad(dense_oracle()[0], (0, block_size), value=-torch.inf)
        entries = (blocks.unsqueeze(-1) * block_size + torch.arange(block_size)).flatten(1)
        picked = full.gather(1, entries.clamp_min(0))
        return (picked.masked_fill(entries < 0, -torch.inf),)

    label = f"{num_rows}x{sizes.index_heads}x{dim}, {sizes.entries} entries"
    moved = q.nbytes + sizes.entries * record_bytes("index_mxfp4", dim) + scores.nbytes
    flops = 2 * num_rows * sizes.index_heads * dim * sizes.entries
    yield Case(
        "index_scores", label, source.dtype, num_rows, dense, dense_oracle, False, moved, flops
    )
    yield Case(
        "candidate_scores", label, source.dtype, num_rows, candidates, candidates_oracle, False,
        moved, flops,
    )  # fmt: skip

    ties = source.integers(0, 9, num_rows, sizes.entries).to(torch.float32)
    ties[ties == 4] = torch.nan
    k = sizes.entries // 3

    def topk(rows: torch.Tensor) -> Outputs:
        return (ops.select_topk(ties[rows], visible[rows], k),)

    def topk_oracle() -> Outputs:
        return (_python_topk(ties.nan_to_num(-torch.inf), visible, k),)

    def chosen(rows: torch.Tensor) -> Outputs:
        selected = ops.select_candidate_blocks(
            ties[rows], visible[rows], block_size=block_size, num_blocks=num_candidates
        )
        return (selected,)

    def chosen_oracle() -> Outputs:
        padding = -sizes.entries % block_size
        hidden = torch.arange(sizes.entries, device=source.device) >= visible[:, None]
        best = ties.nan_to_num(-torch.inf).masked_fill(hidden, -torch.inf)
        best = torch.nn.functional.pad(best, (0, padding), value=-torch.inf)
        maxima = best.view(num_rows, -1, block_size).amax(-1)
        for row, count in enumerate(visible.tolist()):
            if count:
                maxima[row, (count - 1) // block_size] = torch.inf
        return (_python_topk(maxima, -(-visible // block_size), num_candidates),)

    label = f"{num_rows}x{sizes.entries}, k={k}"
    for op, run, oracle in (
        ("select_topk", topk, topk_oracle),
        ("select_candidate_blocks", chosen, chosen_oracle),
    ):
        yield Case(op, label, torch.float32, num_rows, run, oracle, True, ties.nbytes)


def _python_topk(scores: torch.Tensor, visible: torch.Tensor, k: int) -> torch.Tensor:
    """Selection by Python's sort: higher score first, then the lower index."""
    rows = []
    for values, count in zip(scores.tolist(), visible.tolist(), strict=True):
        order = sorted(range(count), key=lambda index: (-values[index], index))
        picked = sorted(order[:k])
        rows.append(picked + [-1] * (k - len(picked)))
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), k)


def _hyper_connections(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    copies, hidden = sizes.copies, sizes.hidden
    x, y = source.normal(num_rows, copies, hidden), source.normal(num_rows, hidden)
    num_mixes = (2 + copies) * copies
    fn = source.wide(num_mixes, copies * hidden, scale=(copies * hidden) ** -0.5)
    scale, base = source.wide(3), source.wide(num_mixes)
    norm_weight = source.normal(hidden)
    logits = source.wide(num_rows, copies, copies)

    def double_sinkhorn(matrix: torch.Tensor) -> torch.Tensor:
        mix = matrix.double().exp()
        mix = mix / mix.sum(2, keepdim=True) + 1e-6
        for step in range(39):
            mix = mix / (mix.sum(2 if step % 2 else 1, keepdim=True) + 1e-6)
        return mix

    def sinkhorn(rows: torch.Tensor) -> Outputs:
        return (ops.hc_sinkhorn(logits[rows], 20, batch_invariant=source.batch_invariant),)

    label = f"{num_rows}x{copies}x{hidden}"
    yield Case(
        "hc_sinkhorn", f"{num_rows}x{copies}x{copies}", logits.dtype, num_rows, sinkhorn,
        lambda: (double_sinkhorn(logits),), False, 2 * logits.nbytes, 120 * logits.numel(),
    )  # fmt: skip

    def mixes(rows: torch.Tensor) -> Outputs:
        return ops.hc_mixes(
            x[rows], fn, scale, base, iterations=20, batch_invariant=source.batch_invariant
        )

    def mixes_oracle() -> Outputs:
        flat = x.double().flatten(1)
        m = flat @ fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-20).sqrt()
        parts = torch.tensor([copies, copies, copies * copies], device=source.device)
        m = m * scale.double().repeat_interleave(parts) + base.double()
        residual = double_sinkhorn(m[:, 2 * copies :].view(-1, copies, copies))
        gates = torch.sigmoid(m[:, : 2 * copies])
        return gates[:, :copies] + 1e-6, 2 * gates[:, copies:], residual

    yield Case(
        "hc_mixes", label, source.dtype, num_rows, mixes, mixes_oracle, False, nbytes(x, fn),
        2 * num_rows * fn.numel(),
    )  # fmt: skip
    pre, post, residual = mixes(torch.arange(num_rows))

    def collapse(rows: torch.Tensor) -> Outputs:
        return (ops.hc_collapse(x[rows], pre[rows], batch_invariant=source.batch_invariant),)

    def collapse_norm(rows: torch.Tensor) -> Outputs:
        return (
            ops.hc_collapse_norm(
                x[rows], pre[rows], norm_weight, batch_invariant=source.batch_invariant
            ),
        )

    def expand(rows: torch.Tensor) -> Outputs:
        arguments = (y[rows], x[rows], post[rows], residual[rows])
        return (ops.hc_expand(*arguments, batch_invariant=source.batch_invariant),)

    def collapsed() -> torch.Tensor:
        return torch.einsum("tc,tch->th", pre.double(), x.double())

    def normed() -> Outputs:
        wide = collapsed().to(x.dtype).double()
        rms = (wide.square().mean(1, keepdim=True) + 1e-20).sqrt()
        return (wide / rms * norm_weight.double(),)

    def expanded() -> Outputs:
        spread = post.double()[:, :, None] * y.double()[:, None]
        return (spread + torch.einsum("tij,tih->tjh", residual.double(), x.double()),)

    yield Case(
        "hc_collapse", label, source.dtype, num_rows, collapse, lambda: (collapsed(),), False,
        nbytes(x, y),
    )  # fmt: skip
    yield Case(
        "hc_collapse_norm", label, source.dtype, num_rows, collapse_norm, normed, False,
        nbytes(x, y),
    )  # fmt: skip
    moved = 2 * x.nbytes + y.nbytes
    yield Case("hc_expand", label, source.dtype, num_rows, expand, expanded, False, moved)


def _experts(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    hidden, size, experts, k = (
        sizes.hidden, sizes.expert_size, sizes.experts, sizes.active_experts,
    )  # fmt: skip
    logits, bias = source.wide(num_rows, experts, scale=3), source.wide(experts)

    def route(rows: torch.Tensor) -> Outputs:
        return ops.router_topk(logits[rows], bias, k, scaling_factor=1.5)

    def route_oracle() -> Outputs:
        scores = torch.log1p(logits.double().exp()).sqrt()
        biased = scores + bias.double()
        order = [sorted(range(experts), key=lambda e: (-row[e], e))[:k] for row in biased.tolist()]
        indices = torch.tensor(order, dtype=torch.int64).view(num_rows, k)
        weights = scores.cpu().gather(1, indices)
        return indices, 1.5 * weights / weights.sum(1, keepdim=True)

    label = f"{num_rows}x{experts}, k={k}"
    yield Case(
        "router_topk", label, logits.dtype, num_rows, route, route_oracle, False, logits.nbytes
    )

    x = source.normal(num_rows, hidden)
    w13 = ops.mxfp4_weight_quantize(source.normal(experts, 2 * size, hidden, scale=hidden**-0.5))
    w2 = ops.mxfp4_weight_quantize(source.normal(experts, hidden, size, scale=size**-0.5))
    indices, weights = ops.router_topk(logits, bias, k)
    indices[0, -1] = -1
    shared = source.normal(num_rows, hidden)
    gate_up = source.normal(num_rows, 2 * size, scale=2)

    def activate(double: torch.Tensor, limit: float) -> torch.Tensor:
        gate, up = double[..., :size].clamp_max(limit), double[..., size:].clamp(-limit, limit)
        return gate / (1 + (-gate).exp()) * up

    def gated(rows: torch.Tensor) -> Outputs:
        return (ops.swiglu(gate_up[rows], 1.5, row_weights=weights[rows, 0]),)

    def gated_oracle() -> Outputs:
        return (activate(gate_up.double(), 1.5) * weights[:, :1].double(),)

    label = f"{num_rows}x{size}"
    moved = gate_up.nbytes * 3 // 2
    yield Case("swiglu", label, source.dtype, num_rows, gated, gated_oracle, False, moved)

    def mixture(rows: torch.Tensor) -> Outputs:
        out = ops.moe_experts(
            x[rows], indices[rows], weights[rows], w13, w2, limit=1.5, shared=shared[rows],
            batch_invariant=source.batch_invariant,
        )  # fmt: skip
        return (out,)

    def mixture_oracle() -> Outputs:
        up, down = w13.dequantize(torch.float64), w2.dequantize(torch.float64)
        total = shared.double()
        for expert in range(experts):
            share = (weights.double() * (indices == expert)).sum(1, keepdim=True)
            gates = (x.double() @ up[expert].T).to(x.dtype).double()
            hidden_rows = (activate(gates, 1.5) * share).to(x.dtype).double()
            total = total + (hidden_rows @ down[expert].T).to(x.dtype).double()
        return (total,)

    num_used = len(set(indices.flatten().tolist()) - {-1})
    moved = (w13.nbytes + w2.nbytes) * num_used // experts + 3 * x.nbytes
    flops = 6 * num_rows * k * hidden * size
    label = f"{num_rows}x{hidden}x{size}, {k} of {experts}"
    yield Case(
        "moe_experts", label, source.dtype, num_rows, mixture, mixture_oracle, False, moved, flops
    )


def _engram(sizes: Sizes, source: Source, num_rows: int) -> Iterator[Case]:
    copies, hidden, dim = sizes.copies, sizes.hidden, sizes.engram_dim
    tables = ops.engram_hash_tables([1, 3], 3, sizes.engram_columns // 2, 5000, 997)
    device_tables = tables.to(source.device)
    context = source.integers(-1, 997, num_rows, 3)

    def hashed(rows: torch.Tensor) -> Outputs:
        return (ops.engram_hash(context[rows], 2, device_tables),)

    def hashed_oracle() -> Outputs:
        result = []
        for ids in context.tolist():
            alive = [all(token >= 0 for token in ids[: r + 1]) for r in range(3)]
            tokens = [token if ok else 2 for token, ok in zip(ids, alive, strict=True)]
            result.append([python_hash(tokens, layer, tables) if alive[0] else
                           [-1] * tables.offsets.shape[1] for layer in range(2)])  # fmt: skip
        return (torch.tensor(result, dtype=torch.int64),)

    yield Case(
        "engram_hash", f"{num_rows}x{sizes.engram_columns}", torch.int64, num_rows, hashed,
        hashed_oracle, True, context.nbytes,
    )  # fmt: skip
    codes, scale = ops.mxfp8_quantize(source.normal(tables.num_rows[0], dim))
    table = ops.EngramTable(codes, scale)
    rows_of = source.integers(-1, tables.num_rows[0], num_rows, sizes.engram_columns)

    def lookup(rows: torch.Tensor) -> Outputs:
        return (ops.engram_lookup(table, rows_of[rows], torch.float64),)

    def lookup_oracle() -> Outputs:
        values = codes.float().double() * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
        picked = values[rows_of.clamp_min(0)].masked_fill((rows_of < 0).unsqueeze(-1), 0)
        return (picked.flatten(1),)

    moved = rows_of.numel() * (dim + dim // 32)
    label = f"{num_rows}x{sizes.engram_columns}x{dim}"
    yield Case(
        "engram_lookup", label, torch.float8_e4m3fn, num_rows, lookup, lookup_oracle, True, moved
    )

    x, keys = source.normal(num_rows, copies, hidden), source.normal(num_rows, copies, hidden)
    value, weight = source.normal(num_rows, hidden), source.wide(copies, hidden)

    def gate(rows: torch.Tensor) -> Outputs:
        return (ops.engram_gate(x[rows], keys[rows], value[rows], weight),)

    def gate_oracle() -> Outputs:
        q, k = x.double(), keys.double()
        cosine = (q * weight.double() * k).sum(-1) / (
            q.square().mean(-1).sqrt() * k.square().mean(-1).sqrt() * hidden**0.5
        )
        root = cosine.abs().clamp_min(1e-6).sqrt() * torch.where(cosine.signbit(), -1.0, 1.0)
        return (q + torch.sigmoid(root).unsqueeze(-1) * value.double().unsqueeze(1),)

    label = f"{num_rows}x{copies}x{hidden}"
    yield Case(
        "engram_gate", label, source.dtype, num_rows, gate, gate_oracle, False,
        3 * x.nbytes + value.nbytes,
    )  # fmt: skip


def python_hash(tokens: list[int], layer: int, tables: ops.EngramHashTables) -> list[int]:
    """Rows of one layer in Python integers."""
    multipliers = tables.multipliers[layer].tolist()
    primes, offsets = tables.primes[layer].tolist(), tables.offsets[layer].tolist()
    mixed, rows = tokens[0] * multipliers[0], []
    for order, heads in enumerate(primes, start=1):
        mixed ^= tokens[order] * multipliers[order]
        rows += [mixed % prime for prime in heads]
    return [row + offset for row, offset in zip(rows, offsets, strict=True)]
