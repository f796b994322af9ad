"""CUDA of the first look for a row's cut: the bins in which it lies.

Every token is counted in one of some bins of the same width, from the largest logit down. What a
bin weighs is known within its width, so those in which the cut may lie are. Their bounds are wider
than what float32 rounds.
"""

BINS = r"""
constexpr int kLevelBins = 1 << kLevelBits, kBins = 4 * kThreads, kArrays = 4, kListed = 1024;
// Words of bins: counts of the first look, or of a later one with three parts of masses.
constexpr int kBinWords = kBins > kArrays * kLevelBins ? kBins : kArrays * kLevelBins;
// A search: its state, bounds of the keys in question, shift from keys to bins, tokens and mass
// above the bounds, tokens kept of those at the cut.
enum { kState, kLow, kHigh, kShift, kCount, kMass, kTies };
// Tokens in question remain; all at the cut or above are kept; some of those at the cut are.
enum { kSearching, kWhole, kPartial };

__device__ __forceinline__ bool di_is_open(const int64_t* search) {
  return search[kState] == kSearching;
}
__device__ __forceinline__ bool di_is_partial(const int64_t* search) {
  return search[kState] == kPartial;
}

// The least relative logit of a row's tokens: not -infinity, which tiny temperatures make of them.
__device__ __forceinline__ double di_floor(const double* state, double temperature,
                                           double min_p) {
  if (min_p > 0.0) return di_portable_log(fmax(min_p, 0x1p-1022));
  const bool is_overflow = (state[2] - state[1]) / temperature == -di_infinity();
  return is_overflow ? -0x1.fffffffffffffp1023 : -di_infinity();
}

// Bins cover the logits, or where mass decides those that it can keep: the tokens further down are
// together less than a third of 1 - top_p.
__device__ __forceinline__ double di_scale(const double* state, double temperature, double top_p,
                                           int vocab_size) {
  double range = state[1] - state[2];
  if (top_p < 1.0)
    range = fmin(range, temperature * fmin(32.0, 1.0 + log(vocab_size / (1.0 - top_p))));
  return static_cast<float>(fmin(fmax((kBins - 2) / range, 1e-30), 1e30));
}

__device__ __forceinline__ float di_below(float x, float largest) { return __fsub_rn(x, largest); }
__device__ __forceinline__ float di_below(double x, double largest) {
  return static_cast<float>(__dadd_rn(x, -largest));
}
// Bins by rounding to the nearest; the last takes all that lie further.
__device__ __forceinline__ int di_bin(float below, float scale) {
  const float bin = fminf(__fmul_rn(-below, scale), static_cast<float>(kBins - 1));
  return __float_as_int(__fadd_rn(bin, 0x1p23f)) & (kBins - 1);
}

template <typename Logit>
__device__ __forceinline__ void di_count_bins(const Logit* kept, int run, const double* law,
                                              unsigned* bins) {
  const Logit largest = static_cast<Logit>(law[kLargest]);
  const float scale = static_cast<float>(law[kScale]);
#pragma unroll 2
  for (int at = 4 * (threadIdx.x % 32); at < run; at += kStep) {
    Logit x[4];
    di_load_logits(kept + at, x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (x[i] > static_cast<Logit>(-di_infinity()))
        atomicAdd(bins + di_bin(di_below(x[i], largest), scale), 1u);
  }
}

// Adds a block's bins to the row's, of which every block holds a part; clears them.
template <int kBlocks, int kSize>
__device__ __forceinline__ void di_add_bins(unsigned* bins, unsigned* totals, int num_arrays) {
  constexpr int kOwned = kSize / kBlocks;
  __syncthreads();
#pragma unroll 2
  for (int place = threadIdx.x; place < num_arrays * kSize; place += kThreads) {
    const int bin = place % kSize;
    const unsigned count = bins[place];
    bins[place] = 0u;
    di_add_to(totals + place / kSize * kOwned + bin % kOwned, bin / kOwned, count);
  }
  di_meet();
}

// Number of tokens, and least and largest mass in units of 1, before each of a thread's bins.
struct DiBounds {
  int count;
  double low, high;
  __device__ __forceinline__ void add(const DiBounds& other) {
    count += other.count, low += other.low, high += other.high;
  }
  __device__ __forceinline__ DiBounds from_lane_above(int distance) const {
    return {__shfl_up_sync(0xFFFFFFFFu, count, distance),
            __shfl_up_sync(0xFFFFFFFFu, low, distance),
            __shfl_up_sync(0xFFFFFFFFu, high, distance)};
  }
};

__device__ __forceinline__ DiBounds di_bounds_of(int bin, unsigned count, float width) {
  // A hundredth of a bin more to each side than rounding gives it.
  const float high = bin == 0 ? 1.0f : exp2f(-(bin - 0.51f) * width);
  const float low = bin == kBins - 1 ? 0.0f : exp2f(-(bin + 0.51f) * width);
  return {static_cast<int>(count), static_cast<double>(count) * low,
          static_cast<double>(count) * high};
}

// The first bin of which a token may be refused and the last of which one may be kept, with the
// keys of their outer edges; four bins a thread. What is said of masses allows for a rounding of
// each of the vocabulary's and for errors of 3e-5 in their estimates.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_find_bracket(const unsigned* totals, double* of_warps,
                                                int* bracket, const double* law,
                                                int vocab_size, int64_t* search) {
  constexpr int kOwned = kBins / kBlocks;
  const int tx = di_thread(), first = 4 * tx;
  const double top_p = law[kTopP], top_k = law[kTopK];
  const bool has_mass = top_p < 1.0;
  const float width =
      static_cast<float>(1.4426950408889634 / (law[kScale] * law[kTemperature]));
  unsigned counts[4];
  di_load4(totals + first % kOwned, first / kOwned, counts);
  DiBounds before = {0, 0.0, 0.0}, sum = {0, 0.0, 0.0};
#pragma unroll
  for (int i = 0; i < 4; ++i) before.add(di_bounds_of(first + i, counts[i], width));
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const DiBounds other = before.from_lane_above(distance);
    if (tx % 32 >= distance) before.add(other);
  }
  if (tx % 32 == 31) {
    double* mine = of_warps + tx / 32 * 3;
    mine[0] = before.count, mine[1] = before.low, mine[2] = before.high;
  }
  before = before.from_lane_above(1);
  if (tx % 32 == 0) before = {0, 0.0, 0.0};
  __syncthreads();
#pragma unroll 1
  for (int warp = 0; warp < kWarps; ++warp) {
    const double* other = of_warps + warp * 3;
    const DiBounds bounds = {static_cast<int>(other[0]), other[1], other[2]};
    sum.add(bounds);
    if (warp < tx / 32) before.add(bounds);
  }
  const double slack = (vocab_size + 8) * 0x1p-44;
  const double least = fmax(sum.low, 1.0) * (1.0 - 3e-5) - slack;
  const double most = sum.high * (1.0 + 3e-5) + slack;
  int top = kBins, bottom = -1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    DiBounds after = before;
    after.add(di_bounds_of(first + i, counts[i], width));
    bool is_kept = after.count <= top_k, is_refused = before.count >= top_k;
    if (has_mass) {
      is_kept &= after.high + slack <= top_p * least ||
                 sum.low - after.low - slack >= (1.0 - top_p) * most;
      is_refused |= before.low - slack > top_p * most ||
                    sum.high - before.high + slack < (1.0 - top_p) * least;
    }
    if (counts[i] != 0 && !is_kept) top = min(top, first + i);
    if (counts[i] != 0 && !is_refused) bottom = first + i;
    before = after;
  }
  top = __reduce_min_sync(0xFFFFFFFFu, top);
  bottom = __reduce_max_sync(0xFFFFFFFFu, bottom);
  if (tx % 32 == 0) {
    atomicMin(bracket, top);
    atomicMax(bracket + 1, bottom);
  }
  __syncthreads();
  if (tx == 0) {
    top = bracket[0], bottom = max(bracket[1], top);
    const double size = 1.0 / law[kScale];
    DiKey low = di_least_key<Logit>(), high = di_order(static_cast<Logit>(law[kLargest]));
    if (top == kBins) {
      search[kState] = kWhole;
    } else {
      if (top > 0)
        high = min(high, di_order_above(__dadd_ru(law[kLargest], -(top - 0.51) * size), Logit()));
      if (bottom < kBins - 1)
        low = max(low, di_order_below(__dadd_rd(law[kLargest], -(bottom + 0.51) * size), Logit()));
    }
    search[kLow] = low, search[kHigh] = high;
    search[kShift] = max(0, 64 - __clzll(high - low) - kLevelBits);
  }
  __syncthreads();
}
"""
