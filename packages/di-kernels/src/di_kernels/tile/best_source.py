"""CUDA of draws from a row beside `row_source`: tokens whose screened scores come near the best.

Screened scores are within 5e-5 of the exact ones: the noise within 1.2e-5, and what it is added to,
in float32. A thread keeps its best two; of the block's threads, those near the block's best score
their tokens exactly, and the row's winner is the best of these.
"""

BEST = r"""
// Twice the error of screened scores.
constexpr float kNear = 1e-4f;

struct DiBest {
  float first, second;
  int token;
  __device__ __forceinline__ DiBest() : token(-1) {
    first = second = __int_as_float(0xFF800000);
  }
  __device__ __forceinline__ void see(float score, int seen) {
    second = fmaxf(second, fminf(first, score));
    token = score > first ? seen : token;
    first = fmaxf(first, score);
  }
};

__device__ __forceinline__ unsigned di_order32(float x) {
  return static_cast<unsigned>(di_order(x));
}

// Score at which a token of the block is near its best, if there is one. `word` is one in shared
// memory.
__device__ __forceinline__ float di_near_in_block(float best, unsigned* word) {
  if (threadIdx.x == 0) *word = 0u;
  __syncthreads();
  const unsigned mine = __reduce_max_sync(0xFFFFFFFFu, di_order32(best));
  if (threadIdx.x % 32 == 0) atomicMax(word, mine);
  __syncthreads();
  const float largest = di_score_of(*word);
  return largest == -di_infinity() ? di_infinity() : largest - kNear;
}

// The best of a warp's scores with the lowest of its tokens; all lanes get both.
__device__ __forceinline__ void di_best_in_warp(double* score, int* token) {
  const DiKey mine = *token < 0 ? 0ull : di_order(*score);
  const DiKey best = di_largest_in_warp(mine, 0.0);
  const int lowest = __reduce_min_sync(
      0xFFFFFFFFu, *token >= 0 && mine == best ? *token : 0x7FFFFFFF);
  *token = lowest == 0x7FFFFFFF ? -1 : lowest;
  *score = di_logit_of(best, 0.0);
}

// The row's best score with its token, of those of its threads; valid after the row's blocks met.
template <int kBlocks>
__device__ __forceinline__ void di_send_best(double score, int token, int rank, double* of_warps,
                                             double* winners) {
  const int tx = threadIdx.x, lane = tx % 32;
  di_best_in_warp(&score, &token);
  if (lane == 0) of_warps[tx / 32 * 2] = score, of_warps[tx / 32 * 2 + 1] = token;
  __syncthreads();
  if (tx < 32) {
    score = lane < kWarps ? of_warps[lane * 2] : 0.0;
    token = lane < kWarps ? static_cast<int>(of_warps[lane * 2 + 1]) : -1;
    di_best_in_warp(&score, &token);
    if (lane < kBlocks) {
      di_send64(winners + rank * 2, lane, __double_as_longlong(score));
      di_send64(winners + rank * 2 + 1, lane, __double_as_longlong(token));
    }
  }
}
template <int kBlocks>
__device__ __forceinline__ int di_best_of(const double* winners) {
  const int lane = threadIdx.x % 32;
  double score = lane < kBlocks ? winners[lane * 2] : 0.0;
  int token = lane < kBlocks ? static_cast<int>(winners[lane * 2 + 1]) : -1;
  di_best_in_warp(&score, &token);
  return token;
}
"""
