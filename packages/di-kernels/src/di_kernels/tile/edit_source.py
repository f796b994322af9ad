"""CUDA of the edits of logits: every step rounds once, as torch's float64 operations do."""

EDITS = r"""
constexpr int kLoads = 8;

__device__ __forceinline__ double di_allowed_logit(double logit, bool is_allowed) {
  const double infinity = __longlong_as_double(0x7FF0000000000000LL);
  return is_allowed || !(logit < infinity) ? logit : -infinity;
}
// A row's mask; none where all tokens are allowed.
__device__ __forceinline__ const unsigned* di_mask_of(const unsigned* mask, int row, bool is_given,
                                                      int words) {
  return is_given ? mask + static_cast<int64_t>(row) * words : nullptr;
}
__device__ __forceinline__ double2 di_read2(const float* from) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  return make_double2(pair.x, pair.y);
}
__device__ __forceinline__ double2 di_read2(const double* from) {
  return *reinterpret_cast<const double2*>(from);
}

// Logits of a part of a row as float64; masked ones -infinity, but for NaN and +infinity. Parts
// begin at multiples of four tokens. A thread copies two together where rows are aligned, so that a
// warp writes 512 neighbouring bytes, and asks for eight such pairs before it writes the first.
template <typename Logit>
__device__ __forceinline__ void di_copy_allowed(const Logit* row, const unsigned* mask, int first,
                                                int end, double* edited) {
  const size_t places = reinterpret_cast<size_t>(row) | reinterpret_cast<size_t>(edited);
  const bool is_aligned = (places & 15) == 0;
  const int whole = is_aligned ? first + (end - first) / 2 * 2 : first, step = 2 * blockDim.x;
#pragma unroll 1
  for (int start = first + 2 * threadIdx.x; start < whole; start += kLoads * step) {
    double2 pairs[kLoads];
    unsigned bits[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int token = min(start + u * step, whole - 2);
      pairs[u] = di_read2(row + token);
      bits[u] = mask == nullptr ? ~0u : mask[token / 32] >> (token % 32);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int token = start + u * step;
      if (token < whole)
        *reinterpret_cast<double2*>(edited + token) =
            make_double2(di_allowed_logit(pairs[u].x, (bits[u] & 1u) != 0),
                         di_allowed_logit(pairs[u].y, (bits[u] & 2u) != 0));
    }
  }
  for (int token = whole + threadIdx.x; token < end; token += blockDim.x)
    edited[token] = di_allowed_logit(
        static_cast<double>(row[token]),
        mask == nullptr || ((mask[token / 32] >> (token % 32)) & 1u) != 0);
}

// Visits the entries whose token lies in the part; asks for eight tokens before it looks at one.
template <typename Visit>
__device__ __forceinline__ void di_each_entry(const int64_t* token_ids, int64_t begin,
                                              int64_t stop, int first, int end, Visit visit) {
#pragma unroll 1
  for (int64_t start = begin + threadIdx.x; start < stop; start += kLoads * blockDim.x) {
    int64_t tokens[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      tokens[u] = start + u * blockDim.x < stop ? token_ids[start + u * blockDim.x] : -1;
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      if (tokens[u] >= first && tokens[u] < end) visit(start + u * blockDim.x, tokens[u]);
  }
}

__device__ __forceinline__ void di_add_bias(const int64_t* token_ids, const double* values,
                                            int64_t begin, int64_t stop, int first, int end,
                                            double* edited) {
  di_each_entry(token_ids, begin, stop, first, end, [&](int64_t i, int64_t token) {
    edited[token] = __dadd_rn(edited[token], values[i]);
  });
}

__device__ __forceinline__ void di_penalise(const int64_t* token_ids, const double* counts,
                                            int64_t begin, int64_t stop, int first, int end,
                                            double repetition, double frequency, double presence,
                                            double* edited) {
  di_each_entry(token_ids, begin, stop, first, end, [&](int64_t i, int64_t token) {
    double logit = edited[token];
    logit = logit > 0.0 ? __ddiv_rn(logit, repetition) : __dmul_rn(logit, repetition);
    logit = __dadd_rn(logit, -__dmul_rn(frequency, counts[i]));
    edited[token] = __dadd_rn(logit, -__dmul_rn(presence, counts[i] > 0.0 ? 1.0 : 0.0));
  });
}
"""
