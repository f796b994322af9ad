"""CUDA of the filters beside `row_source`: what becomes of a row, and the bits of its tokens."""

FILTER = r"""
// What becomes of a row: 0 it keeps its mask, 1 min_p alone, 2 the cut is searched.
__device__ __forceinline__ int di_filter_mode(const double* state, double temperature,
                                              int64_t top_k, double top_p, double min_p,
                                              int64_t vocab_size) {
  if (!di_is_good(state) || temperature == 0.0) return 0;
  if ((top_k >= 1 && top_k < vocab_size) || top_p < 1.0) return 2;
  return min_p > 0.0 ? 1 : 0;
}

__device__ __forceinline__ void di_set_law(const double* state, double temperature, double top_p,
                                           double min_p, double* law) {
  if (threadIdx.x != 0) return;
  law[kLargest] = state[1], law[kTemperature] = temperature, law[kTopP] = top_p;
  law[kFloor] = min_p > 0.0 ? di_portable_log(fmax(min_p, 0x1p-1022)) : -di_infinity();
  law[kScale] = di_scale(state, temperature, top_p);
}

// Kept tokens as bits, a word per step of a warp.
template <typename Logit>
__device__ __forceinline__ void di_write_bits(const Logit* row, const unsigned* mask, int first,
                                              int end, int mode, const double* shared_law,
                                              const int64_t* search, unsigned ties_before,
                                              unsigned* bits) {
  const DiLaw law(shared_law);
  const unsigned below = (1u << (threadIdx.x % 32)) - 1u;
  const bool is_partial = search[kState] == kPartial;
  const unsigned ties = static_cast<unsigned>(search[kTies]);
  di_each<4>(row, mask, first, end, [&](Logit x, bool is_allowed, int token) {
    bool is_kept = is_allowed;
    if (mode == 1)
      is_kept = is_allowed && di_is_in(di_relative(static_cast<double>(x), law), law);
    if (mode == 2) {
      const int side = is_allowed && x > static_cast<Logit>(-di_infinity())
                           ? di_side(x, law, search) : 0;
      is_kept = side == 2 || (side == 1 && !is_partial);
      if (is_partial) {
        const unsigned votes = __ballot_sync(0xFFFFFFFFu, side == 1);
        is_kept |= side == 1 && ties_before + __popc(votes & below) < ties;
        ties_before += __popc(votes);
      }
    }
    const unsigned word = __ballot_sync(0xFFFFFFFFu, is_kept);
    if (threadIdx.x % 32 == 0 && token < end) bits[token / 32] = word;
  });
}
"""
