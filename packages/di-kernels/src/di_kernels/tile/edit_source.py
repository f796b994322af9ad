"""CUDA of the edits of logits: every step rounds once, as torch's float64 operations do."""

EDITS = r"""
__device__ __forceinline__ double di_allowed_logit(double logit, bool is_allowed) {
  const double infinity = __longlong_as_double(0x7FF0000000000000LL);
  return is_allowed || !(logit < infinity) ? logit : -infinity;
}
__device__ __forceinline__ void di_read4(const float* from, double* to) {
  const float4 values = *reinterpret_cast<const float4*>(from);
  to[0] = values.x, to[1] = values.y, to[2] = values.z, to[3] = values.w;
}
__device__ __forceinline__ void di_read4(const double* from, double* to) {
  const double2* pairs = reinterpret_cast<const double2*>(from);
  const double2 low = pairs[0], high = pairs[1];
  to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
}

// Logits of a part of a row as float64; masked ones -infinity, but for NaN and +infinity. Parts
// begin at multiples of four tokens, which are copied together where rows are aligned.
template <typename Logit>
__device__ __forceinline__ void di_copy_allowed(const Logit* row, const unsigned* mask, int first,
                                                int end, double* edited) {
  const size_t places = reinterpret_cast<size_t>(row) | reinterpret_cast<size_t>(edited);
  const bool is_aligned = (places & 15) == 0;
#pragma unroll 4
  for (int token = first + 4 * threadIdx.x; token < end; token += 4 * blockDim.x) {
    const unsigned bits = mask[token / 32] >> (token % 32);
    if (is_aligned && token + 4 <= end) {
      double logits[4];
      di_read4(row + token, logits);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        logits[j] = di_allowed_logit(logits[j], ((bits >> j) & 1u) != 0);
      double2* pairs = reinterpret_cast<double2*>(edited + token);
      pairs[0] = make_double2(logits[0], logits[1]);
      pairs[1] = make_double2(logits[2], logits[3]);
    } else {
      for (int j = 0; j < 4 && token + j < end; ++j)
        edited[token + j] =
            di_allowed_logit(static_cast<double>(row[token + j]), ((bits >> j) & 1u) != 0);
    }
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
