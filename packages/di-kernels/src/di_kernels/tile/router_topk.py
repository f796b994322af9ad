# mypy: ignore-errors
# ruff: noqa: ANN202, SIM102
# (TileLang parses the kernels below as its own language.)
"""The router: scores, the k best of them by biased score, their weights; a warp per row.

Formulas: `di_kernels.ops.moe`. Lane l holds the scores of experts l, 32 + l and so on, and integers
that order like the biased scores, NaN above all. Every choice takes the warp's largest integer,
then the lowest expert that has it: two reductions in hardware.

Builds for sm_80, sm_90a, sm_100a and sm_120a.
"""

import tilelang.language as T

from di_kernels.tile.router import MAX_EXPERTS

_STEPS = MAX_EXPERTS // 32

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

__device__ __forceinline__ unsigned di_warp_largest(unsigned value) {
  return __reduce_max_sync(0xFFFFFFFFu, value);
}

__device__ __forceinline__ unsigned di_warp_least(unsigned value) {
  return __reduce_min_sync(0xFFFFFFFFu, value);
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
        with T.Kernel(num_rows, threads=32) as row:
            T.import_source(SOURCE)
            scores = T.alloc_local((_STEPS,), "float32")
            ordered = T.alloc_local((_STEPS,), "uint32")
            # Of the lane and of the warp; what the lane will write.
            largest = T.alloc_local((2,), "uint32")
            expert = T.alloc_local((3,), "uint32")
            score = T.alloc_local((2,), "float32")
            total = T.alloc_local((1,), "float32")
            lane = T.get_thread_binding()
            for step in T.unroll(_STEPS):
                scores[step] = 0
                ordered[step] = T.uint32(0)
                if step * 32 + lane < experts:
                    scores[step] = T.call_extern(
                        "float32", "di_router_score", logits[row, step * 32 + lane]
                    )
                    ordered[step] = T.call_extern(
                        "uint32",
                        "di_ordered",
                        T.ieee_add(scores[step], bias[row * bias_step, step * 32 + lane]),
                    )
            total[0] = 0
            score[1] = 0
            expert[2] = T.uint32(0)
            for place in T.serial(k):
                largest[0] = T.uint32(0)
                expert[0] = T.uint32(0xFFFFFFFF)
                score[0] = 0
                for step in T.unroll(_STEPS):
                    if ordered[step] > largest[0]:
                        largest[0] = ordered[step]
                        expert[0] = T.cast(step * 32 + lane, "uint32")
                        score[0] = scores[step]
                largest[1] = T.call_extern("uint32", "di_warp_largest", largest[0])
                if largest[0] != largest[1]:
                    expert[0] = T.uint32(0xFFFFFFFF)
                expert[1] = T.call_extern("uint32", "di_warp_least", expert[0])
                score[0] = T.shfl_sync(score[0], T.cast(expert[1] % 32, "int32"))
                total[0] += score[0]
                if lane == place:
                    score[1] = score[0]
                    expert[2] = expert[1]
                for step in T.unroll(_STEPS):
                    if T.cast(step * 32 + lane, "uint32") == expert[1]:
                        ordered[step] = T.uint32(0)
            if lane < k:
                indices[row, lane] = T.cast(expert[2], "int64")
                weights[row, lane] = T.ieee_mul(
                    T.ieee_fdiv(score[1], total[0] + T.float32(1e-20)), factor
                )
                if has_mask:
                    if mask[row] == 0:
                        indices[row, lane] = T.cast(-1, "int64")
                        weights[row, lane] = 0

    return kernel
