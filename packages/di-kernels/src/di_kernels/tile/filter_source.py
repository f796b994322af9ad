"""CUDA of the filters beside `cut_source`: what becomes of a row, and the bits of its tokens."""

FILTER = r"""
// Most tokens of a row.
__device__ __forceinline__ int di_limit(const int64_t* numbers, int row, bool is_given,
                                        int vocab_size) {
  const int64_t top_k = di_number<int64_t>(numbers, row, is_given, 0);
  return top_k < 1 || top_k > vocab_size ? vocab_size : static_cast<int>(top_k);
}

// Whether a row has a filter; otherwise it keeps its mask.
__device__ __forceinline__ bool di_is_filtered(const double* state, double temperature, int limit,
                                               double top_p, double min_p, int vocab_size) {
  return di_is_good(state) && temperature != 0.0 &&
         (limit < vocab_size || top_p < 1.0 || min_p > 0.0);
}

template <typename Logit>
__device__ __forceinline__ void di_set_law(const double* state, double temperature, int limit,
                                           double top_p, double min_p, int vocab_size,
                                           double* law) {
  if (threadIdx.x != 0) return;
  law[kFloor] = di_floor(state, temperature, min_p);
  law[kLargest] = state[1], law[kTopK] = limit, law[kTopP] = top_p;
  law[kScale] = di_scale(state, temperature, top_p, vocab_size);
  di_set_mass_law<Logit>(temperature, state[1] - state[2], law);
}

// Kept tokens of a warp's run as bits, a word per 32 tokens.
template <typename Logit>
__device__ __forceinline__ void di_write_bits(const Logit* kept, int run, int first, int words,
                                              const int64_t* search, unsigned ties_before,
                                              unsigned* bits) {
  const Logit cut = di_cut<Logit>(search);
  const bool is_partial = di_is_partial(search);
  const unsigned ties = static_cast<unsigned>(search[kTies]);
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int start = 0; start < run; start += 1024) {
    unsigned mine = 0;
    const int steps = min(run - start, 1024) / 32;
    if (is_partial) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const Logit x = kept[start + 32 * step + lane];
        const unsigned votes = __ballot_sync(0xFFFFFFFFu, x == cut);
        const unsigned word = __ballot_sync(
            0xFFFFFFFFu, x > cut || (x == cut && ties_before + di_before(votes) < ties));
        ties_before += __popc(votes);
        mine = lane == step ? word : mine;
      }
    } else {
#pragma unroll 4
      for (int step = 0; step < steps; ++step) {
        const unsigned word = __ballot_sync(0xFFFFFFFFu, kept[start + 32 * step + lane] >= cut);
        mine = lane == step ? word : mine;
      }
    }
    const int place = (first + start) / 32 + lane;
    if (lane < steps && place < words) bits[place] = mine;
  }
}

// Words of a mask, without bits behind the vocabulary.
__device__ __forceinline__ void di_write_mask(const unsigned* mask, int first, int end, int words,
                                              int vocab_size, unsigned* bits) {
  for (int place = first + threadIdx.x; place < min(end, words); place += kThreads) {
    const int left = vocab_size - 32 * place;
    bits[place] = di_mask_word(mask, 32 * place) & (left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1u);
  }
}
"""
