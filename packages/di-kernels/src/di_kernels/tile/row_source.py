"""CUDA of ops on rows of logits that a cluster of thread blocks, or one block, works on.

A block keeps its part of the row in shared memory; a warp owns a run of neighbouring tokens, four
of a step's 128 to a lane. What the mask forbids, and what lies behind the vocabulary, is -infinity
there, so later passes ask for neither. Masses are integers (`mass_source`), so their sums depend on
no order.
"""

from di_kernels.tile.cluster_source import CLUSTER
from di_kernels.tile.draw_source import DRAW
from di_kernels.tile.mass_source import MASS
from di_kernels.tile.row_steps import RowShape
from di_kernels.tile.select_source import SELECT

_IN_CLUSTER = r"""
__device__ __forceinline__ void di_arrive() { di_arrive_in_cluster(); }
__device__ __forceinline__ void di_wait() { di_wait_for_cluster(); }
__device__ __forceinline__ void di_send(unsigned* word, int rank, unsigned value) {
  di_peer_store(word, rank, value);
}
__device__ __forceinline__ void di_add_to(unsigned* word, int rank, unsigned value) {
  if (value != 0) di_peer_add(word, rank, value);
}
__device__ __forceinline__ void di_load4(const unsigned* words, int rank, unsigned* values) {
  di_peer_load4(words, rank, values);
}
"""

_IN_BLOCK = r"""
__device__ __forceinline__ void di_arrive() { __syncthreads(); }
__device__ __forceinline__ void di_wait() {}
__device__ __forceinline__ void di_send(unsigned* word, int, unsigned value) { *word = value; }
__device__ __forceinline__ void di_add_to(unsigned* word, int, unsigned value) { *word = value; }
__device__ __forceinline__ void di_load4(const unsigned* words, int, unsigned* values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = words[i];
}
"""

_ROW = r"""
using DiKey = unsigned long long;
constexpr int kStep = 128;

// The thread's number, read anew: what follows from it is not kept in registers from step to step.
__device__ __forceinline__ int di_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ __forceinline__ void di_meet() {
  di_arrive();
  di_wait();
}
__device__ __forceinline__ void di_send64(void* number, int rank, int64_t value) {
  unsigned* words = static_cast<unsigned*>(number);
  di_send(words, rank, static_cast<unsigned>(value));
  di_send(words + 1, rank, static_cast<unsigned>(value >> 32));
}

// Keys order like logits, -0 like +0; and the logit of a key.
__device__ __forceinline__ DiKey di_order(float x) { return di_score_key(__float_as_uint(x)); }
__device__ __forceinline__ DiKey di_order(double x) {
  const int64_t bits = __double_as_longlong(x + 0.0);
  return static_cast<DiKey>(bits) ^ (static_cast<DiKey>(bits >> 63) | 0x8000000000000000ull);
}
__device__ __forceinline__ DiKey di_order_above(double x, float) {
  return di_order(__double2float_ru(x));
}
__device__ __forceinline__ DiKey di_order_above(double x, double) { return di_order(x); }
__device__ __forceinline__ DiKey di_order_below(double x, float) {
  return di_order(__double2float_rd(x));
}
__device__ __forceinline__ DiKey di_order_below(double x, double) { return di_order(x); }
__device__ __forceinline__ float di_logit_of(DiKey key, float) {
  return di_score_of(static_cast<unsigned>(key));
}
__device__ __forceinline__ double di_logit_of(DiKey key, double) {
  return __longlong_as_double(key & 0x8000000000000000ull ? key ^ 0x8000000000000000ull : ~key);
}
// Key of the least finite logit.
template <typename Logit>
__device__ __forceinline__ DiKey di_least_key() {
  return di_order(static_cast<Logit>(-di_infinity())) + 1;
}

__device__ __forceinline__ void di_load_logits(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ void di_load_logits(const double* from, double* to) {
  *reinterpret_cast<double2*>(to) = *reinterpret_cast<const double2*>(from);
  *reinterpret_cast<double2*>(to + 2) = *reinterpret_cast<const double2*>(from + 2);
}
__device__ __forceinline__ void di_store_logits(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ void di_store_logits(const double* from, double* to) {
  *reinterpret_cast<double2*>(to) = *reinterpret_cast<const double2*>(from);
  *reinterpret_cast<double2*>(to + 2) = *reinterpret_cast<const double2*>(from + 2);
}
__device__ __forceinline__ float di_larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double di_larger(double a, double b) { return fmax(a, b); }

// Numbers of rows, or what stands for them where there are none.
template <typename Number>
__device__ __forceinline__ Number di_number(const Number* numbers, int row, bool is_given,
                                            Number other) {
  return is_given ? numbers[row] : other;
}
// A row's mask; none where all tokens are allowed.
__device__ __forceinline__ const unsigned* di_mask_of(const unsigned* mask, int row, bool is_given,
                                                      int words) {
  return is_given ? mask + static_cast<int64_t>(row) * words : nullptr;
}
__device__ __forceinline__ unsigned di_mask_word(const unsigned* mask, int token) {
  return mask == nullptr ? 0xFFFFFFFFu : mask[token / 32];
}

// Largest of a warp's keys.
__device__ __forceinline__ DiKey di_largest_in_warp(DiKey key, float) {
  return __reduce_max_sync(0xFFFFFFFFu, static_cast<unsigned>(key));
}
__device__ __forceinline__ DiKey di_largest_in_warp(DiKey key, double) {
  const unsigned mine = static_cast<unsigned>(key >> 32);
  const unsigned high = __reduce_max_sync(0xFFFFFFFFu, mine);
  const unsigned low =
      __reduce_max_sync(0xFFFFFFFFu, mine == high ? static_cast<unsigned>(key) : 0u);
  return static_cast<DiKey>(high) << 32 | low;
}
// Sum of a warp's numbers that are not negative.
__device__ __forceinline__ int64_t di_sum_in_warp(int64_t value) {
  constexpr unsigned kLimb = (1u << 22) - 1u;
  const int64_t low = __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(value) & kLimb);
  const int64_t middle =
      __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(value >> 22) & kLimb);
  const int64_t high = __reduce_add_sync(0xFFFFFFFFu, static_cast<unsigned>(value >> 44));
  return low + (middle << 22) + (high << 44);
}

// Copies a warp's run from memory, -infinity for what is not allowed, and leaves keys of its
// largest logit (NaN above all), its largest allowed one and, turned round, its smallest finite
// allowed one.
template <typename Logit>
__device__ __forceinline__ void di_keep_run(const Logit* row, const unsigned* mask, int first,
                                            int run, int vocab_size, Logit* kept,
                                            int64_t* extremes) {
  constexpr int kLoads = sizeof(Logit) == 4 ? 8 : 4;
  const Logit infinity = static_cast<Logit>(di_infinity());
  const bool is_aligned = (reinterpret_cast<size_t>(row) & 15) == 0;
  const int lane = threadIdx.x % 32;
  Logit worst = -infinity, largest = -infinity, least = infinity;
  bool has_nan = false;
#pragma unroll 1
  for (int start = 0; start < run; start += kStep * kLoads) {
    Logit values[kLoads][4];
    unsigned allowed[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int token = first + start + kStep * u + 4 * lane;
      const int limit = start + kStep * u < run ? vocab_size : 0;
      if (is_aligned && token + 4 <= limit) {
        di_load_logits(row + token, values[u]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[u][i] = token + i < limit ? row[token + i] : -infinity;
      }
      allowed[u] = token < limit ? di_mask_word(mask, token) >> (token % 32) : 0u;
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Logit& x = values[u][i];
        worst = di_larger(worst, x);
        has_nan |= x != x;
        x = (allowed[u] >> i) & 1u ? x : -infinity;
        largest = di_larger(largest, x);
        least = x > -infinity && x < least ? x : least;
      }
      if (start + kStep * u < run)
        di_store_logits(values[u], kept + start + kStep * u + 4 * lane);
    }
  }
  extremes[0] = has_nan ? -1 : di_order(worst);
  extremes[1] = di_order(largest);
  extremes[2] = ~di_order(least);
}

// A row's extremes from those of its threads. The row's blocks have arrived once before.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_row_extremes(int rank, const int64_t* extremes, double* shared,
                                                int64_t* of_blocks, double* state) {
  int64_t* of_warps = reinterpret_cast<int64_t*>(shared);
  const int tx = threadIdx.x, lane = tx % 32;
  DiKey keys[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    keys[i] = di_largest_in_warp(extremes[i], Logit());
    if (lane == 0) of_warps[tx / 32 * 3 + i] = keys[i];
  }
  __syncthreads();
  di_wait();
  if (tx < 32) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      keys[i] = di_largest_in_warp(lane < kWarps ? of_warps[lane * 3 + i] : 0, Logit());
      if (lane < kBlocks) di_send64(of_blocks + rank * 3 + i, lane, keys[i]);
    }
  }
  di_meet();
#pragma unroll
  for (int i = 0; i < 3; ++i)
    keys[i] = di_largest_in_warp(lane < kBlocks ? of_blocks[lane * 3 + i] : 0, Logit());
  constexpr DiKey kNan = sizeof(Logit) == 4 ? 0xFFFFFFFFull : ~0ull;
  state[0] = keys[0] == kNan ? di_infinity() - di_infinity() : di_logit_of(keys[0], Logit());
  state[1] = di_logit_of(keys[1], Logit());
  state[2] = di_logit_of(keys[2] ^ kNan, Logit());
}

// Whether a row can be drawn from.
__device__ __forceinline__ bool di_is_good(const double* state) {
  return state[0] == state[0] && state[0] < di_infinity() && state[1] > -di_infinity();
}

// Sums over the row of what each thread has; valid after the row's blocks met once more.
template <int kBlocks, int kSums>
__device__ __forceinline__ void di_send_sums(const int64_t* sums, int rank, double* shared,
                                             int64_t* of_blocks) {
  int64_t* of_warps = reinterpret_cast<int64_t*>(shared);
  const int tx = threadIdx.x, lane = tx % 32;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int64_t sum = di_sum_in_warp(sums[i]);
    if (lane == 0) of_warps[tx / 32 * 3 + i] = sum;
  }
  __syncthreads();
  if (tx < 32) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int64_t sum = di_sum_in_warp(lane < kWarps ? of_warps[lane * 3 + i] : 0);
      if (lane < kBlocks) di_send64(of_blocks + rank * 3 + i, lane, sum);
    }
  }
}
template <int kBlocks>
__device__ __forceinline__ int64_t di_sum_of(const int64_t* of_blocks, int number) {
  int64_t sum = 0;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) sum += of_blocks[block * 3 + number];
  return sum;
}
"""


def row_source(shape: RowShape) -> str:
    """The helpers for rows of one block, or of a cluster of blocks."""
    sizes = (
        f"constexpr int kThreads = {shape.threads}, kWarps = kThreads / 32;\n"
        f"constexpr int kLevelBits = {shape.level_bits};\n"
    )
    if shape.blocks == 1:
        return sizes + SELECT + DRAW + MASS + _IN_BLOCK + _ROW
    return sizes + SELECT + CLUSTER + DRAW + MASS + _IN_CLUSTER + _ROW
