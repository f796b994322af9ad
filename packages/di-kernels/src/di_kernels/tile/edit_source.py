"""CUDA of the edits of logits: every step rounds once, as torch's float64 operations do."""

EDITS = r"""
// Logits of a part of a row as float64; masked ones -infinity, but for NaN and +infinity.
template <typename Logit>
__device__ __forceinline__ void di_copy_allowed(const Logit* row, const unsigned* mask, int first,
                                                int end, double* edited) {
  const double infinity = __longlong_as_double(0x7FF0000000000000LL);
#pragma unroll 8
  for (int token = first + threadIdx.x; token < end; token += blockDim.x) {
    const double logit = static_cast<double>(row[token]);
    const bool is_allowed = ((mask[token / 32] >> (token % 32)) & 1u) != 0;
    edited[token] = is_allowed || !(logit < infinity) ? logit : -infinity;
  }
}

__device__ __forceinline__ void di_add_bias(const int64_t* token_ids, const double* values,
                                            int64_t begin, int64_t stop, int first, int end,
                                            double* edited) {
  for (int64_t i = begin + threadIdx.x; i < stop; i += blockDim.x) {
    const int64_t token = token_ids[i];
    if (token >= first && token < end) edited[token] = __dadd_rn(edited[token], values[i]);
  }
}

__device__ __forceinline__ void di_penalise(const int64_t* token_ids, const double* counts,
                                            int64_t begin, int64_t stop, int first, int end,
                                            double repetition, double frequency, double presence,
                                            double* edited) {
  for (int64_t i = begin + threadIdx.x; i < stop; i += blockDim.x) {
    const int64_t token = token_ids[i];
    if (token < first || token >= end) continue;
    double logit = edited[token];
    logit = logit > 0.0 ? __ddiv_rn(logit, repetition) : __dmul_rn(logit, repetition);
    logit = __dadd_rn(logit, -__dmul_rn(frequency, counts[i]));
    edited[token] = __dadd_rn(logit, -__dmul_rn(presence, counts[i] > 0.0 ? 1.0 : 0.0));
  }
}
"""
