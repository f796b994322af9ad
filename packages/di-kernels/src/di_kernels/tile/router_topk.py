# mypy: ignore-errors
# ruff: noqa: ANN202, SIM102
# (TileLang parses the kernels below as its own language.)
"""The router: scores, the k best of them by biased score, their weights; a thread block per row.

Formulas: `di_kernels.ops.moe`. A thread has one expert: its score, and an integer that orders like
its biased score, NaN above all. So all logits of a row are asked for at once; a thread with several
experts would ask for the next behind the branches of the last one's logarithm. Every warp takes its
largest integer k times, of equal ones the first; then the first warp merges those ordered lists, a
lane each, the same way.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.router import MAX_CHOSEN, MAX_EXPERTS

_WARPS = MAX_EXPERTS // 32

SOURCE = r"""
// softplus by the formula of torch's logsigmoid, so that scores have its bits.
__device__ __forceinline__ float di_router_score(float logit) {
  return sqrtf(-(fminf(-logit, 0.0f) - log1pf(expf(-fabsf(logit)))));
}

// Orders like the float, -0 as +0, NaN above all; 0 is below every number.
__device__ __forceinline__ unsigned di_ordered(float value) {
  if (value != value) return 0xFFFFFFFFu;
  const unsigned bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The warp's largest value, and whether the lane is the first that has it.
__device__ __forceinline__ bool di_is_first_largest(unsigned value) {
  const unsigned largest = __reduce_max_sync(0xFFFFFFFFu, value);
  return threadIdx.x % 32 == __ffs(__ballot_sync(0xFFFFFFFFu, value == largest)) - 1;
}
"""


def router_topk(*, has_mask: bool) -> object:
    """Experts and weights; with `has_mask` rows of mask 0 get expert -1 and weight 0.

    `bias_step` is 1 where every row has a bias of its own, else 0.
    """
    num_rows, experts, bias_rows, k = T.dynamic("num_rows, experts, bias_rows, k")

    @T.prim_func
    def kernel(
        logits: T.Tensor((num_rows, experts), "float32"),
        bias: T.Tensor((bias_rows, experts), "float32"),
        mask: T.Tensor((num_rows,), "uint8"),
        bias_step: T.int32,
        factor: T.float32,
        indices: T.Tensor((num_rows, k), "int64"),
        weights: T.Tensor((num_rows, k), "float32"),
    ):
        with T.Kernel(num_rows, threads=MAX_EXPERTS) as row:
            T.import_source(SOURCE)
            scores_s = T.alloc_shared((MAX_EXPERTS,), "float32", scope="shared")
            # A warp's best, from the best down.
            ordered_s = T.alloc_shared((_WARPS, MAX_CHOSEN + 1), "uint32", scope="shared")
            experts_s = T.alloc_shared((_WARPS, MAX_CHOSEN), "int32", scope="shared")
            chosen_s = T.alloc_shared((MAX_CHOSEN,), "int32", scope="shared")
            loaded = T.alloc_local((2,), "float32")
            score = T.alloc_local((1,), "float32")
            total = T.alloc_local((1,), "float32")
            ordered = T.alloc_local((1,), "uint32")
            taken = T.alloc_local((1,), "int32")
            tx = T.get_thread_binding()
            warp, lane = tx // 32, tx % 32
            ordered[0] = T.uint32(0)
            if tx < experts:
                loaded[0] = logits[row, tx]
                loaded[1] = bias[row * bias_step, tx]
                score[0] = T.call_extern("float32", "di_router_score", loaded[0])
                scores_s[tx] = score[0]
                ordered[0] = T.call_extern("uint32", "di_ordered", T.ieee_add(score[0], loaded[1]))
            for place in T.unroll(k, unroll_factor=1):
                if T.call_extern("bool", "di_is_first_largest", ordered[0]):
                    ordered_s[warp, place] = ordered[0]
                    experts_s[warp, place] = tx
                    ordered[0] = T.uint32(0)
            T.sync_threads()
            if tx < 32:
                ordered[0] = T.uint32(0)
                if lane < _WARPS:
                    ordered[0] = ordered_s[lane, 0]
                taken[0] = 0
                for place in T.unroll(k, unroll_factor=1):
                    if T.call_extern("bool", "di_is_first_largest", ordered[0]):
                        chosen_s[place] = experts_s[lane, taken[0]]
                        taken[0] += 1
                        # Behind a whole list there is none that could still be chosen.
                        ordered[0] = ordered_s[lane, taken[0]]
                score[0] = 0
                if lane < k:
                    taken[0] = chosen_s[lane]
                    score[0] = scores_s[taken[0]]
                total[0] = 0
                for place in T.unroll(k, unroll_factor=1):
                    total[0] += T.shfl_sync(score[0], place)
                if lane < k:
                    indices[row, lane] = T.cast(taken[0], "int64")
                    weights[row, lane] = T.ieee_mul(
                        T.ieee_fdiv(score[0], total[0] + T.float32(1e-20)), factor
                    )
                    if has_mask:
                        if mask[row] == 0:
                            indices[row, lane] = T.cast(-1, "int64")
                            weights[row, lane] = 0

    return kernel
