"""CUDA of log-probabilities beside `row_source`: most likely tokens, gathered and put in order."""

LOG_PROBS = r"""
constexpr int kSlots = 32, kSlotWords = 3;

__device__ __forceinline__ void di_set_plain_law(const double* state, double temperature,
                                                 double* law) {
  if (threadIdx.x != 0) return;
  law[kLargest] = state[1], law[kTemperature] = temperature == 0.0 ? 1.0 : temperature;
  law[kFloor] = -di_infinity(), law[kTopP] = 1.0;
  law[kScale] = di_scale(state, law[kTemperature], 1.0);
}

// Sends the tokens above the cut, and the first of those at it, to the first block of the row: two
// words of key and the id. At most 32 in all.
template <typename Logit>
__device__ __forceinline__ void di_send_top(const Logit* row, const unsigned* mask, int first,
                                            int end, int rank, const double* shared_law,
                                            const int64_t* search, unsigned ties_before,
                                            unsigned* size, unsigned* slots) {
  const DiLaw law(shared_law);
  const unsigned below = (1u << (threadIdx.x % 32)) - 1u;
  const bool is_partial = search[kState] == kPartial;
  const unsigned ties = static_cast<unsigned>(search[kTies]);
  di_each<4>(row, mask, first, end, [&](Logit x, bool is_allowed, int token) {
    const int side = is_allowed && x > static_cast<Logit>(-di_infinity())
                         ? di_side(x, law, search) : 0;
    bool is_kept = side == 2 || (side == 1 && !is_partial);
    if (is_partial) {
      const unsigned votes = __ballot_sync(0xFFFFFFFFu, side == 1);
      is_kept |= side == 1 && ties_before + __popc(votes & below) < ties;
      ties_before += __popc(votes);
    }
    if (is_kept) {
      const unsigned mine = atomicAdd(size, 1u);
      unsigned* slot = slots + (rank * kSlots + mine) * kSlotWords;
      const DiKey key = di_order(x);
      di_send(slot, 0, static_cast<unsigned>(key));
      di_send(slot + 1, 0, static_cast<unsigned>(key >> 32));
      di_send(slot + 2, 0, static_cast<unsigned>(token));
    }
  });
}

__device__ __forceinline__ double di_log_of_mass(int64_t total) {
  return log(__ll2double_rn(total) * 0x1p-44);
}

// Writes the gathered tokens in order, by the row's first block.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_write_top(const Logit* row, const double* law, int64_t total,
                                             int num_top, const unsigned* slots,
                                             int64_t* token_ids, float* log_probs) {
  const int tx = threadIdx.x;
  int token = -1;
  double value = -di_infinity();
  if (tx < kSlots * kBlocks) {
    const unsigned* mine = slots + tx * kSlotWords;
    token = static_cast<int>(mine[2]);
    if (token >= 0) {
      const DiKey key = mine[0] | static_cast<DiKey>(mine[1]) << 32;
      int before = 0;
      for (int slot = 0; slot < kSlots * kBlocks; ++slot) {
        const unsigned* other = slots + slot * kSlotWords;
        const int other_token = static_cast<int>(other[2]);
        const DiKey other_key = other[0] | static_cast<DiKey>(other[1]) << 32;
        before += other_token >= 0 &&
                  (other_key > key || (other_key == key && other_token < token));
      }
      value = di_relative(static_cast<double>(row[token]), law) - di_log_of_mass(total);
      token_ids[before] = token;
      log_probs[before] = static_cast<float>(value);
    }
  }
  const int count = __syncthreads_count(token >= 0);
  if (tx >= count && tx < num_top) {
    token_ids[tx] = -1;
    log_probs[tx] = static_cast<float>(-di_infinity());
  }
}

__device__ __forceinline__ void di_write_no_top(int num_top, int64_t* token_ids,
                                                float* log_probs) {
  if (threadIdx.x < num_top) {
    token_ids[threadIdx.x] = -1;
    log_probs[threadIdx.x] = static_cast<float>(-di_infinity());
  }
}

// Log-probability of one token.
template <typename Logit>
__device__ __forceinline__ float di_log_prob_of(const Logit* row, const unsigned* mask,
                                                int64_t token, int64_t vocab_size, bool is_good,
                                                const double* law, int64_t total) {
  if (!is_good || token < 0 || token >= vocab_size) return __int_as_float(0x7FC00000);
  if (((mask[token / 32] >> (token % 32)) & 1u) == 0) return static_cast<float>(-di_infinity());
  return static_cast<float>(di_relative(static_cast<double>(row[token]), law) -
                            di_log_of_mass(total));
}
"""
