"""CUDA of the cut of a row: where its kept tokens end, descending logits, equal ones by id.

1. `bins_source` finds bins in which it lies.
2. A pass adds up the masses of all tokens, and those of the tokens above these bins, and lists the
   tokens in them (`di_gather`).
3. The listed tokens, or where a block's list is full all of its part, are counted with their masses
   by ordered keys, some bits at a time, until one token or one value is left (`di_find_cut`).

Bins of masses hold three parts of 15 bits each: 2^17 of them add up inside 32 bits, so that 32-bit
additions alone are atomic.
"""

from di_kernels.tile.bins_source import BINS

CUT = (
    BINS
    + r"""
// Appends tokens of a warp's lanes, four in each of eight steps, to the block's list.
__device__ __forceinline__ void di_list(unsigned flags, int first, unsigned short* list,
                                        unsigned* size) {
  if (!__any_sync(0xFFFFFFFFu, flags != 0)) return;
  const int lane = threadIdx.x % 32;
  const unsigned count = __popc(flags);
  unsigned place = di_scan_warp(count);
  unsigned start = 0;
  if (lane == 31) start = atomicAdd(size, place);
  place += __shfl_sync(0xFFFFFFFFu, start, 31) - count;
  for (; flags != 0; flags &= flags - 1, ++place) {
    const int number = __ffs(flags) - 1;
    if (place < kListed) list[place] = first + number / 4 * kStep + 4 * lane + number % 4;
  }
}

// One look at a warp's run. `sums` become the sum of masses, that of tokens above the bracket, and
// their number; tokens in the bracket (with `has_above` those above too) are listed.
template <bool kHasMass, bool kHasCut, typename Logit>
__device__ __forceinline__ void di_gather(const Logit* part, int run, const double* law,
                                          const int64_t* search, bool has_above, int64_t* sums,
                                          unsigned short* list, unsigned* size) {
  constexpr int kSteps = 8;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * run;
  const DiMasses masses(law);
  const bool is_short = kHasMass && di_has_short_way(law);
  const Logit least = static_cast<Logit>(law[kLeast]);
  const Logit low = di_logit_of(static_cast<DiKey>(search[kLow]), Logit());
  const Logit high = di_logit_of(static_cast<DiKey>(search[kHigh]), Logit());
  int64_t sum = 0, sum_above = 0;
  int num_above = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < run; chunk += kSteps * kStep) {
    const Logit* kept = part + first + chunk + 4 * lane;
    const int stop = min(run - chunk, kSteps * kStep);
    unsigned unsure = 0, above = 0, listed = 0;
    DiMassSum short_sum, short_above;
#pragma unroll 1
    for (int at = 0; at < stop; at += kStep) {
      Logit x[4];
      di_load_logits(kept + at, x);
      unsigned are_above = 0, are_in = 0, are_unsure = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_above = kHasCut && x[i] > high;
        if (is_above) are_above |= 1u << i;
        if (kHasCut && x[i] >= low) are_in |= 1u << i;
        if (is_short) {
          double most, fewest;
          masses.of(static_cast<double>(di_larger(x[i], least)), &most, &fewest);
          short_sum.add(most, fewest);
          if (kHasCut) short_above.add(most, fewest, is_above);
          if (__double2loint(most) != __double2loint(fewest)) are_unsure |= 1u << i;
        } else if (kHasMass && x[i] > static_cast<Logit>(-di_infinity())) {
          are_unsure |= 1u << i;
        }
      }
      const int shift = at / kStep * 4;
      above |= are_above << shift, listed |= are_in << shift, unsure |= are_unsure << shift;
    }
    if (kHasCut) {
      num_above += __popc(above);
      di_list(has_above ? listed : listed & ~above, first + chunk, list, size);
    }
    if (is_short) {
      sum += short_sum.of(stop / 32 - __popc(unsure));
      if (kHasCut) sum_above += short_above.of(__popc(above & ~unsure));
    }
    for (; unsure != 0; unsure &= unsure - 1) {
      const int number = __ffs(unsure) - 1;
      const Logit x = kept[number / 4 * kStep + number % 4];
      const int64_t mass = di_mass(di_relative(static_cast<double>(x), law));
      sum += mass;
      if (kHasCut && x > high) sum_above += mass;
    }
  }
  sums[0] = sum, sums[1] = sum_above, sums[2] = num_above;
}

// Counts the tokens in question, and their masses where mass decides.
template <typename Logit>
__device__ __forceinline__ void di_count_level(const Logit* part, int part_size,
                                               const unsigned short* list, const unsigned* size,
                                               const double* law, const int64_t* search,
                                               unsigned* bins) {
  const DiKey low = search[kLow], high = search[kHigh];
  const int shift = static_cast<int>(search[kShift]);
  const bool has_mass = law[kTopP] < 1.0, is_listed = *size <= kListed;
  const int end = is_listed ? static_cast<int>(*size) : part_size;
#pragma unroll 1
  for (int at = di_thread(); at < end; at += kThreads) {
    const Logit x = part[is_listed ? list[at] : at];
    const DiKey key = di_order(x);
    if (!(x > static_cast<Logit>(-di_infinity())) || key < low || key > high) continue;
    unsigned* bin = bins + static_cast<int>((high - key) >> shift);
    atomicAdd(bin, 1u);
    if (!has_mass) continue;
    const int64_t mass = di_mass(di_relative(static_cast<double>(x), law));
    if (mass == 0) continue;
    atomicAdd(bin + kLevelBins, static_cast<unsigned>(mass) & 0x7FFFu);
    atomicAdd(bin + 2 * kLevelBins, static_cast<unsigned>(mass >> 15) & 0x7FFFu);
    atomicAdd(bin + 3 * kLevelBins, static_cast<unsigned>(mass >> 30));
  }
}

// Whether a token is kept that has so many tokens and so much mass before it.
__device__ __forceinline__ bool di_survives(int count, int64_t mass, int top_k,
                                            double total, double top_p) {
  return count < top_k &&
         (top_p >= 1.0 || __ddiv_rn(__ll2double_rn(mass), total) <= top_p);
}

// Narrows the search to the found bin, `count` tokens of `mass` in all.
__device__ __forceinline__ void di_narrow(int bin, int count_above, int64_t mass_above, int count,
                                          int64_t mass, double top_p, int top_k, double total,
                                          int64_t* search) {
  DiKey low = search[kLow], high = search[kHigh];
  const int shift = static_cast<int>(search[kShift]);
  if (static_cast<DiKey>(bin) != (high - low) >> shift)
    low = high - ((static_cast<DiKey>(bin) + 1) << shift) + 1;
  high -= static_cast<DiKey>(bin) << shift;
  search[kLow] = low, search[kHigh] = high;
  search[kShift] = max(0, 64 - __clzll(high - low) - kLevelBits);
  search[kCount] = count_above, search[kMass] = mass_above;
  if (count == 1 ||
      di_survives(count_above + count - 1, mass_above + mass, top_k, total, top_p)) {
    search[kState] = kWhole;
  } else if (low == high) {
    const int64_t each = mass / count;
    int kept = 1, refused = count + 1;
    while (refused - kept > 1) {
      const int middle = (kept + refused) / 2;
      if (di_survives(count_above + middle - 1, mass_above + (middle - 1) * each, top_k, total,
                      top_p))
        kept = middle;
      else
        refused = middle;
    }
    search[kTies] = kept;
    search[kState] = kept == count ? kWhole : kPartial;
  }
}

// Finds the lowest bin that is not empty and whose first token is kept; four bins a thread. Where
// there is none, all tokens above the bins are kept.
template <int kBlocks>
__device__ __forceinline__ void di_find_cut(const unsigned* totals, double* shared,
                                            const int64_t* of_blocks, int* deepest,
                                            const double* law, int64_t* search) {
  constexpr int kOwned = kLevelBins / kBlocks;
  const int tx = di_thread(), first = 4 * tx, top_k = static_cast<int>(law[kTopK]);
  int64_t* of_warps = reinterpret_cast<int64_t*>(shared);
  const double whole = __ll2double_rn(di_sum_of<kBlocks>(of_blocks, 0)), top_p = law[kTopP];
  unsigned words[kArrays][4] = {};
  if (first < kLevelBins)
#pragma unroll
    for (int array = 0; array < kArrays; ++array)
      if (array == 0 || top_p < 1.0)
        di_load4(totals + array * kOwned + first % kOwned, first / kOwned, words[array]);
  int64_t masses[4], mass = 0;
  int count = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    masses[i] = words[1][i] + (static_cast<int64_t>(words[2][i]) << 15) +
                (static_cast<int64_t>(words[3][i]) << 30);
    count += words[0][i];
    mass += masses[i];
  }
  int count_above = -count;
  int64_t mass_above = -mass;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other_count = __shfl_up_sync(0xFFFFFFFFu, count, distance);
    const int64_t other_mass = __shfl_up_sync(0xFFFFFFFFu, mass, distance);
    if (tx % 32 >= distance) count += other_count, mass += other_mass;
  }
  count_above += count, mass_above += mass;
  if (tx % 32 == 31) of_warps[tx / 32] = count, of_warps[kWarps + tx / 32] = mass;
  __syncthreads();
#pragma unroll 1
  for (int warp = 0; warp < tx / 32; ++warp)
    count_above += static_cast<int>(of_warps[warp]), mass_above += of_warps[kWarps + warp];
  count_above += static_cast<int>(search[kCount]), mass_above += search[kMass];
  int found = -1;
  int found_count = 0;
  int64_t found_mass = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (words[0][i] != 0 && di_survives(count_above, mass_above, top_k, whole, top_p))
      found = first + i, found_count = count_above, found_mass = mass_above;
    count_above += words[0][i], mass_above += masses[i];
  }
  if (found >= 0) atomicMax(deepest, found);
  __syncthreads();
  const int at = *deepest;
  if (found >= 0 && found == at) {
    const int i = found - first;
    di_narrow(found, found_count, found_mass,
              i == 0 ? words[0][0] : i == 1 ? words[0][1] : i == 2 ? words[0][2] : words[0][3],
              i == 0 ? masses[0] : i == 1 ? masses[1] : i == 2 ? masses[2] : masses[3], top_p,
              top_k, whole, search);
  }
  if (at < 0 && tx == 0) {
    search[kLow] = search[kHigh] + 1;
    search[kState] = kWhole;
  }
  __syncthreads();
}

// Finds the cut of a row. With `kHasSum`, and where top_p asks for it, `of_blocks` get the sums of
// masses. `bins` are a look's, then a block's part of the sums of every look; `marks` the bracket,
// then the deepest bin of every later look; `size` the number of tokens that belong into the list.
template <int kBlocks, int kRounds, bool kHasSum, typename Logit>
__device__ __forceinline__ void di_search(const Logit* part, int run, int rank, int vocab_size,
                                          unsigned* bins, int* marks, unsigned short* list,
                                          unsigned* size, int64_t* search, const double* law,
                                          double* of_warps, int64_t* of_blocks) {
  constexpr int kLookWords = kBinWords / kBlocks;
  if (!kHasSum && law[kTopK] >= vocab_size && law[kTopP] >= 1.0) return;  // the floor alone
  const bool has_mass = law[kTopP] < 1.0;
  unsigned* totals = bins + kBinWords;
  di_count_bins(part + threadIdx.x / 32 * run, run, law, bins);
  di_add_bins<kBlocks, kBins>(bins, totals, 1);
  di_find_bracket<kBlocks, Logit>(totals, of_warps, marks, law, vocab_size, search);
  if (!kHasSum && !di_is_open(search)) return;
  {
    int64_t sums[3];
    if (kHasSum || has_mass)
      di_gather<true, true>(part, run, law, search, kHasSum, sums, list, size);
    else
      di_gather<false, true>(part, run, law, search, kHasSum, sums, list, size);
    di_send_sums<kBlocks, 3>(sums, rank, of_warps, of_blocks);
  }
#pragma unroll 1
  for (int level = 0; level == 0 || (level < kRounds && di_is_open(search)); ++level) {
    if (kBlocks > 1) totals += kLookWords;
    if (di_is_open(search))
      di_count_level(part, kWarps * run, list, size, law, search, bins);
    di_add_bins<kBlocks, kLevelBins>(bins, totals, has_mass ? kArrays : 1);
    if (!di_is_open(search)) break;
    if (level == 0) {
      if (threadIdx.x == 0) {
        search[kMass] = di_sum_of<kBlocks>(of_blocks, 1);
        search[kCount] = di_sum_of<kBlocks>(of_blocks, 2);
      }
      __syncthreads();
    }
    di_find_cut<kBlocks>(totals, of_warps, of_blocks, marks + 2 + level, law, search);
  }
}

// Raises the cut to the least logit above the floor, which the first warp finds: relative logits
// grow with logits, and the largest is kept.
template <typename Logit>
__device__ __forceinline__ void di_raise_cut(const double* law, int64_t* search) {
  const double floor = law[kFloor];
  if (floor > -di_infinity() && threadIdx.x < 32) {
    DiKey refused = di_least_key<Logit>() - 1, kept = di_order(static_cast<Logit>(law[kLargest]));
    while (kept - refused > 1) {
      const DiKey step = (kept - refused + 31) / 32, key = refused + step * threadIdx.x;
      const bool is_kept =
          threadIdx.x > 0 &&
          (key >= kept || di_relative(di_logit_of(key, Logit()), law) >= floor);
      const unsigned votes = __ballot_sync(0xFFFFFFFFu, is_kept);
      const int lane = votes == 0 ? 32 : __ffs(votes) - 1;
      kept = min(kept, refused + step * lane);
      refused += step * (lane - 1);
    }
    if (threadIdx.x == 0 && kept > static_cast<DiKey>(search[kLow])) {
      search[kLow] = kept;
      search[kState] = kWhole;
    }
  }
  __syncthreads();
}

// The last logit of the kept.
template <typename Logit>
__device__ __forceinline__ Logit di_cut(const int64_t* search) {
  return di_logit_of(static_cast<DiKey>(search[kLow]), Logit());
}

// Tokens at the cut in the warps and blocks before this one.
template <int kBlocks, typename Logit>
__device__ __forceinline__ unsigned di_ties_before(const Logit* kept, int run, int rank,
                                                   const int64_t* search, unsigned* of_warps,
                                                   unsigned* of_blocks) {
  const Logit cut = di_cut<Logit>(search);
  const int tx = threadIdx.x;
  unsigned ties = 0;
#pragma unroll 4
  for (int at = tx % 32; at < run; at += 32) ties += kept[at] == cut;
  ties = __reduce_add_sync(0xFFFFFFFFu, ties);
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
)
