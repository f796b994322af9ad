"""CUDA of log-probabilities beside `cut_source`: most likely tokens, gathered and put in order."""

LOG_PROBS = r"""
constexpr int kSlots = 32, kSlotWords = 3;

template <typename Logit>
__device__ __forceinline__ void di_set_plain_law(const double* state, double temperature,
                                                 int num_top, int vocab_size, double* law) {
  if (threadIdx.x != 0) return;
  const double divisor = temperature == 0.0 ? 1.0 : temperature;
  law[kFloor] = di_floor(state, divisor, 0.0);
  law[kLargest] = state[1], law[kTopK] = num_top, law[kTopP] = 1.0;
  law[kScale] = di_scale(state, divisor, 1.0, vocab_size);
  di_set_mass_law<Logit>(divisor, state[1] - state[2], law);
}

// Sums of masses of the row's blocks; valid after they met once more.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_row_mass(const Logit* part, int run, int rank,
                                            const double* law, double* of_warps,
                                            int64_t* of_blocks) {
  int64_t sums[3];
  di_gather<true, false>(part, run, law, nullptr, false, sums, nullptr, nullptr);
  di_send_sums<kBlocks, 1>(sums, rank, of_warps, of_blocks);
}

// Sends a token to the first block of the row, whose bins are empty again: two words of key and one
// more than the id.
template <typename Logit>
__device__ __forceinline__ void di_send_token(Logit x, int token, int rank, unsigned* num_sent,
                                              unsigned* slots) {
  unsigned* slot = slots + (rank * kSlots + atomicAdd(num_sent, 1u)) * kSlotWords;
  const DiKey key = di_order(x);
  di_send(slot, 0, static_cast<unsigned>(key));
  di_send(slot + 1, 0, static_cast<unsigned>(key >> 32));
  di_send(slot + 2, 0, static_cast<unsigned>(token) + 1u);
}

// Sends the tokens above the cut, and the first of those at it. At most 32 in all.
template <typename Logit>
__device__ __forceinline__ void di_send_top(const Logit* part, int run, int rank,
                                            const unsigned short* list, const unsigned* size,
                                            const int64_t* search, unsigned ties_before,
                                            unsigned* num_sent, unsigned* slots) {
  const Logit cut = di_cut<Logit>(search);
  const unsigned ties = static_cast<unsigned>(search[kTies]);
  const int begin = rank * kWarps * run, lane = threadIdx.x % 32;
  if (di_is_partial(search)) {
    const int first = threadIdx.x / 32 * run;
#pragma unroll 1
    for (int at = first + lane; at < first + run; at += 32) {
      const Logit x = part[at];
      const unsigned votes = __ballot_sync(0xFFFFFFFFu, x == cut);
      if (x > cut || (x == cut && ties_before + di_before(votes) < ties))
        di_send_token(x, begin + at, rank, num_sent, slots);
      ties_before += __popc(votes);
    }
    return;
  }
  const bool is_listed = *size <= kListed;
  const int end = is_listed ? static_cast<int>(*size) : kWarps * run;
#pragma unroll 1
  for (int i = threadIdx.x; i < end; i += kThreads) {
    const int at = is_listed ? list[i] : i;
    if (part[at] >= cut) di_send_token(part[at], begin + at, rank, num_sent, slots);
  }
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
  if (tx < kSlots * kBlocks) {
    const unsigned* mine = slots + tx * kSlotWords;
    token = static_cast<int>(mine[2]) - 1;
    if (token >= 0) {
      const DiKey key = mine[0] | static_cast<DiKey>(mine[1]) << 32;
      int before = 0;
      for (int slot = 0; slot < kSlots * kBlocks; ++slot) {
        const unsigned* other = slots + slot * kSlotWords;
        const int other_token = static_cast<int>(other[2]) - 1;
        const DiKey other_key = other[0] | static_cast<DiKey>(other[1]) << 32;
        before += other_token >= 0 &&
                  (other_key > key || (other_key == key && other_token < token));
      }
      const double value =
          di_relative(static_cast<double>(row[token]), law) - di_log_of_mass(total);
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
  const int place = static_cast<int>(token);
  if (((di_mask_word(mask, place) >> (place % 32)) & 1u) == 0)
    return static_cast<float>(-di_infinity());
  return static_cast<float>(di_relative(static_cast<double>(row[token]), law) -
                            di_log_of_mass(total));
}
"""
