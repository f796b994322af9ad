"""CUDA of ops on rows of logits that a cluster of thread blocks, or one block, works on.

A block has 512 threads; a warp owns a run of neighbouring tokens. Masses are integers, exp of the
relative logit in units of 2^-44 (`di_kernels.masses`), so their sums depend on no order. Bins hold
counts and the three parts of masses, 15 bits each: 2^17 of them add up inside 32 bits, so that
32-bit additions alone are atomic.

The cut of a row is where its kept tokens end, in the order of descending logits, equal ones by
ascending id. It is searched from the top: first in bins as wide as the same difference of logits,
then in the found bin by ordered keys, 2,048 bins at a time.
"""

from di_kernels.tile.cluster_source import CLUSTER
from di_kernels.tile.draw_source import DRAW
from di_kernels.tile.select_source import SELECT

_IN_CLUSTER = r"""
__device__ __forceinline__ void di_meet() { di_sync_cluster(); }
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
__device__ __forceinline__ void di_meet() { __syncthreads(); }
__device__ __forceinline__ void di_send(unsigned* word, int, unsigned value) { *word = value; }
__device__ __forceinline__ void di_add_to(unsigned* word, int, unsigned value) { *word = value; }
__device__ __forceinline__ void di_load4(const unsigned* words, int, unsigned* values) {
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = words[i];
}
"""

_ROW = r"""
using DiKey = unsigned long long;
constexpr int kBins = 2048, kThreads = 512, kWarps = 16, kArrays = 4;
// A row's law: largest allowed logit, temperature, least relative logit, bins per logit, top_p.
enum { kLargest, kTemperature, kFloor, kScale, kTopP };
// A search: its state, bounds of the keys in question, bin of the first level, shift from keys to
// bins, tokens and mass above the bounds, tokens kept of those at the cut.
enum { kState, kLow, kHigh, kBin, kShift, kCount, kMass, kTies };
// Tokens in question remain; all at the cut or above are kept; some of those at the cut are.
enum { kSearching, kWhole, kPartial };

__device__ __forceinline__ double di_infinity() {
  return __longlong_as_double(0x7FF0000000000000LL);
}
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

// The law lies in shared memory; what is used token by token is copied to registers.
struct DiLaw {
  double numbers[5];
  __device__ __forceinline__ explicit DiLaw(const double* law) {
#pragma unroll
    for (int i = 0; i < 5; ++i) numbers[i] = law[i];
  }
  __device__ __forceinline__ operator const double*() const { return numbers; }
};

__device__ __forceinline__ double di_relative(double logit, const double* law) {
  return __ddiv_rn(__dadd_rn(logit, -law[kLargest]), law[kTemperature]);
}
// Below -31.5 a mass rounds to 0.
__device__ __forceinline__ int64_t di_mass(double relative) {
  return relative < -31.5 ? 0 : __double2ll_rn(exp(relative) * 0x1p44);
}
__device__ __forceinline__ bool di_is_in(double relative, const double* law) {
  return relative >= law[kFloor] && relative > -di_infinity();
}
// Bins of the same width from the largest logit down; the last takes all that lie further.
__device__ __forceinline__ int di_linear_bin(float x, const double* law) {
  const float below = __fsub_rn(static_cast<float>(law[kLargest]), x);
  const float bin = __fmul_rn(below, static_cast<float>(law[kScale]));
  return __float2int_rz(fminf(bin, static_cast<float>(kBins - 1)));
}
__device__ __forceinline__ int di_linear_bin(double x, const double* law) {
  const float below = static_cast<float>(__dadd_rn(law[kLargest], -x));
  const float bin = __fmul_rn(below, static_cast<float>(law[kScale]));
  return __float2int_rz(fminf(bin, static_cast<float>(kBins - 1)));
}

// Visits a warp's tokens in order; loads of so many steps stand together. Every lane visits, with
// `is_allowed` false behind the end.
template <int kSteps, typename Logit, typename Visit>
__device__ __forceinline__ void di_each(const Logit* row, const unsigned* mask, int first, int end,
                                        Visit visit) {
  const int lane = threadIdx.x % 32;
  for (int start = first; start < end; start += 32 * kSteps) {
    Logit values[kSteps];
    unsigned words[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int token = start + 32 * i + lane;
      values[i] = token < end ? row[token] : static_cast<Logit>(-di_infinity());
      words[i] = start + 32 * i < end ? mask[start / 32 + i] : 0u;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int token = start + 32 * i + lane;
      visit(values[i], token < end && ((words[i] >> lane) & 1u) != 0, token);
    }
  }
}

__device__ __forceinline__ void di_send64(void* number, int rank, int64_t value) {
  unsigned* words = static_cast<unsigned*>(number);
  di_send(words, rank, static_cast<unsigned>(value));
  di_send(words + 1, rank, static_cast<unsigned>(value >> 32));
}

__device__ __forceinline__ void di_merge_extremes(double* state, double worst, double largest,
                                                  double least) {
  state[0] = di_worst(state[0], worst);
  state[1] = fmax(state[1], largest);
  state[2] = fmin(state[2], least);
}

// Largest logit of all (NaN above all), largest and smallest finite allowed one, of a row.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_row_extremes(const Logit* row, const unsigned* mask, int first,
                                                int end, int rank, double* of_warps,
                                                double* of_blocks, double* state) {
  const Logit infinity = static_cast<Logit>(di_infinity());
  Logit worst = -infinity, largest = -infinity, least = infinity;
  di_each<8>(row, mask, first, end, [&](Logit x, bool is_allowed, int) {
    worst = x != x || x > worst ? x : worst;
    if (is_allowed && x > -infinity) {
      largest = x > largest ? x : largest;
      least = x < least ? x : least;
    }
  });
  state[0] = worst, state[1] = largest, state[2] = least;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    di_merge_extremes(state, __shfl_xor_sync(0xFFFFFFFFu, state[0], step),
                      __shfl_xor_sync(0xFFFFFFFFu, state[1], step),
                      __shfl_xor_sync(0xFFFFFFFFu, state[2], step));
  const int tx = threadIdx.x;
  if (tx % 32 == 0)
    for (int i = 0; i < 3; ++i) of_warps[tx / 32 * 3 + i] = state[i];
  __syncthreads();
  if (tx < kBlocks) {
#pragma unroll 1
    for (int warp = 0; warp < kWarps; ++warp)
      di_merge_extremes(state, of_warps[warp * 3], of_warps[warp * 3 + 1], of_warps[warp * 3 + 2]);
    for (int i = 0; i < 3; ++i)
      di_send64(of_blocks + rank * 3 + i, tx, __double_as_longlong(state[i]));
  }
  di_meet();
#pragma unroll 1
  for (int block = 0; block < kBlocks; ++block)
    di_merge_extremes(state, of_blocks[block * 3], of_blocks[block * 3 + 1],
                      of_blocks[block * 3 + 2]);
}

// Whether a row can be drawn from.
__device__ __forceinline__ bool di_is_good(const double* state) {
  return state[0] == state[0] && state[0] < di_infinity() && state[1] > -di_infinity();
}

// Sum over the row of what each thread has; valid after the row's blocks met once more.
template <int kBlocks>
__device__ __forceinline__ void di_start_sum(int64_t value, int rank, int64_t* of_warps,
                                             int64_t* of_blocks) {
  const int tx = threadIdx.x;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  if (tx % 32 == 0) of_warps[tx / 32] = value;
  __syncthreads();
  if (tx < kBlocks) {
    int64_t sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
    di_send64(of_blocks + rank, tx, sum);
  }
}
template <int kBlocks>
__device__ __forceinline__ int64_t di_end_sum(const int64_t* of_blocks) {
  int64_t sum = 0;
#pragma unroll 1
  for (int block = 0; block < kBlocks; ++block) sum += of_blocks[block];
  return sum;
}

// Bins of the first level cover the logits, or those whose mass is not 0 where mass decides.
__device__ __forceinline__ double di_scale(const double* state, double temperature, double top_p) {
  double range = state[1] - state[2];
  if (top_p < 1.0) range = fmin(range, 32.0 * temperature);
  return static_cast<float>(fmin(fmax((kBins - 1) / range, 1e-30), 1e30));
}

// Counts the tokens in question, and their masses where mass decides. The sum of masses of all
// allowed tokens is for the first level alone, where all are in question.
template <bool kIsFirst, typename Logit>
__device__ __forceinline__ int64_t di_count_tokens(const Logit* row, const unsigned* mask,
                                                     int first, int end,
                                                     const double* shared_law,
                                                     const int64_t* search, bool is_counted,
                                                     bool has_sum, unsigned* counts) {
  const DiLaw law(shared_law);
  const DiKey low = search[kLow], high = search[kHigh];
  const int at = static_cast<int>(search[kBin]), shift = static_cast<int>(search[kShift]);
  const bool has_mass = law[kTopP] < 1.0;
  int64_t sum = 0;
  di_each<4>(row, mask, first, end, [&](Logit x, bool is_allowed, int) {
    if (!is_allowed || !(x > static_cast<Logit>(-di_infinity()))) return;
    int bin = is_counted ? di_linear_bin(x, law) : 0;
    if (!kIsFirst) {
      const DiKey key = di_order(x);
      if (bin != at || key < low || key > high) return;
      bin = static_cast<int>((high - key) >> shift);
    }
    const double relative = di_relative(static_cast<double>(x), law);
    const int64_t mass = has_mass || has_sum ? di_mass(relative) : 0;
    sum += mass;
    if (!is_counted || !di_is_in(relative, law)) return;
    atomicAdd(counts + bin, 1u);
    if (has_mass && mass != 0) {
      atomicAdd(counts + kBins + bin, static_cast<unsigned>(mass) & 0x7FFFu);
      atomicAdd(counts + 2 * kBins + bin, static_cast<unsigned>(mass >> 15) & 0x7FFFu);
      atomicAdd(counts + 3 * kBins + bin, static_cast<unsigned>(mass >> 30));
    }
  });
  return sum;
}

// Adds a block's bins to the row's, of which every block holds a part; clears them.
template <int kBlocks>
__device__ __forceinline__ void di_add_bins(unsigned* counts, unsigned* totals) {
  constexpr int kOwned = kBins / kBlocks;
  __syncthreads();
#pragma unroll 4
  for (int i = 0; i < kArrays * kBins / kThreads; ++i) {
    const int place = i * kThreads + threadIdx.x, bin = place % kBins;
    const unsigned count = counts[place];
    counts[place] = 0u;
    di_add_to(totals + place / kBins * kOwned + bin % kOwned, bin / kOwned, count);
  }
  di_meet();
}

// Whether a token is kept that has so many tokens and so much mass before it.
__device__ __forceinline__ bool di_survives(int64_t count, int64_t mass, int64_t top_k,
                                            double total, double top_p) {
  return count < top_k &&
         (top_p >= 1.0 || __ddiv_rn(__ll2double_rn(mass), total) <= top_p);
}

// Narrows the search to the found bin, `count` tokens of `mass` in all.
template <bool kIsFirst, typename Logit>
__device__ __forceinline__ void di_narrow(int bin, int64_t count_above, int64_t mass_above,
                                          int64_t count, int64_t mass, const double* law,
                                          int64_t top_k, double total, int64_t* search) {
  DiKey low = search[kLow], high = search[kHigh];
  if (kIsFirst) {
    // Outwards by a hundredth of a bin: what rounding moved across an edge is told by its bin.
    const double width = 1.0 / law[kScale];
    high = di_order_above(__dadd_ru(law[kLargest], -(bin - 0.01) * width), Logit());
    low = bin == kBins - 1
              ? di_order(static_cast<Logit>(-di_infinity()))
              : di_order_below(__dadd_rd(law[kLargest], -(bin + 1.01) * width), Logit());
    search[kBin] = bin;
  } else {
    const int shift = static_cast<int>(search[kShift]);
    const bool is_last = static_cast<DiKey>(bin) == (high - low) >> shift;
    if (!is_last) low = high - ((static_cast<DiKey>(bin) + 1) << shift) + 1;
    high -= static_cast<DiKey>(bin) << shift;
  }
  search[kLow] = low, search[kHigh] = high;
  search[kShift] = max(0, 64 - __clzll(high - low) - 11);
  search[kCount] = count_above, search[kMass] = mass_above;
  if (count == 1 ||
      di_survives(count_above + count - 1, mass_above + mass, top_k, total, law[kTopP])) {
    search[kState] = kWhole;
  } else if (low == high) {
    const int64_t each = mass / count;
    int64_t kept = 1, refused = count + 1;
    while (refused - kept > 1) {
      const int64_t middle = (kept + refused) / 2;
      if (di_survives(count_above + middle - 1, mass_above + (middle - 1) * each, top_k, total,
                      law[kTopP]))
        kept = middle;
      else
        refused = middle;
    }
    search[kTies] = kept;
    search[kState] = kept == count ? kWhole : kPartial;
  }
}

// Finds the lowest bin that is not empty and whose first token is kept; four bins a thread.
template <int kBlocks, bool kIsFirst, typename Logit>
__device__ __forceinline__ void di_find_cut(const unsigned* totals, int64_t* of_warps,
                                            int* deepest, const double* law, int64_t top_k,
                                            int64_t total, int64_t* search) {
  constexpr int kOwned = kBins / kBlocks;
  const int tx = threadIdx.x, first = 4 * tx;
  const double whole = __ll2double_rn(total);
  unsigned words[kArrays][4] = {};
#pragma unroll
  for (int array = 0; array < kArrays; ++array)
    if (array == 0 || law[kTopP] < 1.0)
      di_load4(totals + array * kOwned + first % kOwned, first / kOwned, words[array]);
  int64_t masses[4], count = 0, mass = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    masses[i] = words[1][i] + (static_cast<int64_t>(words[2][i]) << 15) +
                (static_cast<int64_t>(words[3][i]) << 30);
    count += words[0][i];
    mass += masses[i];
  }
  int64_t count_above = -count, mass_above = -mass;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t other_count = __shfl_up_sync(0xFFFFFFFFu, count, distance);
    const int64_t other_mass = __shfl_up_sync(0xFFFFFFFFu, mass, distance);
    if (tx % 32 >= distance) count += other_count, mass += other_mass;
  }
  count_above += count, mass_above += mass;
  if (tx % 32 == 31) of_warps[tx / 32] = count, of_warps[kWarps + tx / 32] = mass;
  __syncthreads();
  for (int warp = 0; warp < tx / 32; ++warp)
    count_above += of_warps[warp], mass_above += of_warps[kWarps + warp];
  count_above += search[kCount], mass_above += search[kMass];
  int found = -1;
  int64_t found_count = 0, found_mass = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (words[0][i] != 0 && di_survives(count_above, mass_above, top_k, whole, law[kTopP]))
      found = first + i, found_count = count_above, found_mass = mass_above;
    count_above += words[0][i], mass_above += masses[i];
  }
  if (found >= 0) atomicMax(deepest, found);
  __syncthreads();
  if (found >= 0 && found == *deepest) {
    const int i = found - first;
    di_narrow<kIsFirst, Logit>(
        found, found_count, found_mass,
        i == 0 ? words[0][0] : i == 1 ? words[0][1] : i == 2 ? words[0][2] : words[0][3],
        i == 0 ? masses[0] : i == 1 ? masses[1] : i == 2 ? masses[2] : masses[3], law, top_k,
        whole, search);
  }
  __syncthreads();
}

__device__ __forceinline__ bool di_is_open(const int64_t* search) {
  return search[kState] == kSearching;
}
__device__ __forceinline__ bool di_is_partial(const int64_t* search) {
  return search[kState] == kPartial;
}

// 2 above the cut, 1 at it, 0 below. The bin of the cut may hold tokens that min_p removes.
template <typename Logit>
__device__ __forceinline__ int di_side(Logit x, const double* law, const int64_t* search) {
  const int bin = di_linear_bin(x, law), at = static_cast<int>(search[kBin]);
  if (bin != at) return bin < at ? 2 : 0;
  const DiKey key = di_order(x), low = search[kLow];
  if (key < low || !di_is_in(di_relative(static_cast<double>(x), law), law)) return 0;
  return key > low ? 2 : 1;
}

// Tokens at the cut in the warps and blocks before this one.
template <int kBlocks, typename Logit>
__device__ __forceinline__ unsigned di_ties_before(const Logit* row, const unsigned* mask,
                                                   int first, int end, int rank,
                                                   const double* shared_law,
                                                   const int64_t* search, unsigned* of_warps,
                                                   unsigned* of_blocks) {
  const DiLaw law(shared_law);
  const int tx = threadIdx.x;
  unsigned ties = 0;
  di_each<4>(row, mask, first, end, [&](Logit x, bool is_allowed, int) {
    const bool is_tie = is_allowed && x > static_cast<Logit>(-di_infinity()) &&
                        di_side(x, law, search) == 1;
    ties += __popc(__ballot_sync(0xFFFFFFFFu, is_tie));
  });
  if (tx % 32 == 0) of_warps[tx / 32] = ties;
  __syncthreads();
  unsigned before = 0, sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    before += warp < tx / 32 ? of_warps[warp] : 0;
    sum += of_warps[warp];
  }
  if (tx < kBlocks) di_send(of_blocks + rank, tx, sum);
  di_meet();
  for (int block = 0; block < rank; ++block) before += of_blocks[block];
  return before;
}
"""


def row_source(blocks: int) -> str:
    """The helpers for rows of one block, or of a cluster of blocks."""
    if blocks == 1:
        return SELECT + DRAW + _IN_BLOCK + _ROW
    return SELECT + CLUSTER + DRAW + _IN_CLUSTER + _ROW
