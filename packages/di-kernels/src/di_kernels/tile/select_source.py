"""CUDA helpers of the selections: ordered keys of scores, counts, sums over a block."""

SELECT = r"""
// Key of a score's bits: the larger key is the larger score. -0 is +0, NaN is minus infinity. No
// score has key 0, which stands for an entry that is not there.
__device__ __forceinline__ unsigned di_score_key(unsigned bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) bits = 0xFF800000u;
  if (bits == 0x80000000u) bits = 0u;
  return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

// The least score of a key, or a NaN where every score has a larger one.
__device__ __forceinline__ float di_score_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// A warp's scores from memory to `values`, as float32: the load of `count` of them is started.
__device__ __forceinline__ void di_start_loads(const unsigned* scores, int count, unsigned* values,
                                               int) {
  const int lane = threadIdx.x % 32;
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(values));
  if ((reinterpret_cast<size_t>(scores) & 15) == 0) {
#pragma unroll 1
    for (int i = 4 * lane; i < count; i += 128)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                   :: "r"(to + 4 * i), "l"(scores + i) : "memory");
  } else {
#pragma unroll 1
    for (int i = lane; i < count; i += 32)
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                   :: "r"(to + 4 * i), "l"(scores + i) : "memory");
  }
}
__device__ __forceinline__ void di_start_loads(const unsigned short* scores, int count,
                                               unsigned* values, int) {
  const bool is_aligned = (reinterpret_cast<size_t>(scores) & 7) == 0;
#pragma unroll 1
  for (int first = 4 * (threadIdx.x % 32); first < count; first += 512) {
    unsigned pairs[4][2];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const unsigned short* four = scores + min(first + 128 * u, (count - 1) & ~3);
      if (is_aligned) {
        *reinterpret_cast<uint2*>(pairs[u]) = *reinterpret_cast<const uint2*>(four);
      } else {
        const int last = count - 1 - static_cast<int>(four - scores);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair)
          pairs[u][pair] = four[min(2 * pair, last)] |
                           static_cast<unsigned>(four[min(2 * pair + 1, last)]) << 16;
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (first + 128 * u < count)
        *reinterpret_cast<uint4*>(values + first + 128 * u) =
            make_uint4(pairs[u][0] << 16, pairs[u][0] & 0xFFFF0000u, pairs[u][1] << 16,
                       pairs[u][1] & 0xFFFF0000u);
  }
}

// Largest of eight scores, at most the largest finite one; NaN counts as minus infinity.
__device__ __forceinline__ float di_best_of_eight(const unsigned* scores, bool is_aligned) {
  float values[8], best = __uint_as_float(0xFF800000u);
  if (is_aligned) {
    *reinterpret_cast<uint4*>(values) = reinterpret_cast<const uint4*>(scores)[0];
    *reinterpret_cast<uint4*>(values + 4) = reinterpret_cast<const uint4*>(scores)[1];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __uint_as_float(scores[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) best = fmaxf(best, values[i]);
  return fminf(best, __uint_as_float(0x7F7FFFFFu));
}
__device__ __forceinline__ float di_best_of_eight(const unsigned short* scores, bool is_aligned) {
  unsigned pairs[4];
  float best = __uint_as_float(0xFF800000u);
  if (is_aligned) {
    *reinterpret_cast<uint4*>(pairs) = *reinterpret_cast<const uint4*>(scores);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = scores[2 * i] | static_cast<unsigned>(scores[2 * i + 1]) << 16;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    best = fmaxf(best, fmaxf(__uint_as_float(pairs[i] << 16),
                             __uint_as_float(pairs[i] & 0xFFFF0000u)));
  return fminf(best, __uint_as_float(0x7F7F0000u));
}

// The best of every block of eight instead; block `newest` is above all others. It may end behind
// the row: what is read for it does not matter.
template <typename Score>
__device__ __forceinline__ void di_load_blocks(const Score* scores, int count, unsigned* values,
                                               int newest) {
  const bool is_aligned = (reinterpret_cast<size_t>(scores) & 15) == 0;
#pragma unroll 1
  for (int first = threadIdx.x % 32; first < count; first += 128) {
    float best[4];
#pragma unroll
    for (int u = 0; u < 4; ++u)
      best[u] = di_best_of_eight(scores + 8 * min(min(first + 32 * u, count - 1), newest - 1),
                                 is_aligned);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int at = first + 32 * u;
      if (at < count) values[at] = at == newest ? 0x7F800000u : __float_as_uint(best[u]);
    }
  }
}

// Waits for a warp's own loads; minus infinity up to the next 128th value.
__device__ __forceinline__ void di_finish_loads(int count, unsigned* values) {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
#pragma unroll 1
  for (int i = count + threadIdx.x % 32; i < (count + 127) / 128 * 128; i += 32)
    values[i] = 0xFF800000u;
  __syncwarp();
}

// Largest of every four values of the lane, of looks at 128 each; minus infinity where there are
// none.
template <int kLooks>
__device__ __forceinline__ void di_best_of_fours(const unsigned* values, int count, float* best) {
#pragma unroll
  for (int look = 0; look < kLooks; ++look) {
    best[look] = __uint_as_float(0xFF800000u);
    if (128 * look < count) {
      const float4 four = reinterpret_cast<const float4*>(values)[32 * look + threadIdx.x % 32];
      best[look] = fmaxf(fmaxf(fmaxf(best[look], four.x), fmaxf(four.y, four.z)), four.w);
    }
  }
}

// Adds one to the bin of the upper eleven bits of a score's key.
__device__ __forceinline__ void di_count_score(unsigned* counts, float score, bool is_counted) {
  if (is_counted) atomicAdd(counts + (di_score_key(__float_as_uint(score)) >> 21), 1u);
}

// Adds one to `counts[bin]`. The lanes of a warp that share a bin make one addition in hardware.
__device__ __forceinline__ void di_count(unsigned* counts, unsigned bin, bool is_counted) {
  if (is_counted) atomicAdd(counts + bin, 1u);
}

// Appends a warp's values from `low` up, of `count` whose fours have the given bests, and their
// places to `size` that there are; beyond 128 they are only counted. None is below a NaN.
template <int kLooks>
__device__ __forceinline__ unsigned di_pack(const unsigned* values, int count, const float* best,
                                            float low, int place, unsigned size,
                                            unsigned* packed, int* packed_places) {
  const int lane = threadIdx.x % 32;
  const unsigned below = (1u << lane) - 1u;
  unsigned looks = 0;
#pragma unroll
  for (int look = 0; look < kLooks; ++look) looks |= !(best[look] < low) << look;
#pragma unroll 1
  for (looks = __reduce_or_sync(0xFFFFFFFFu, looks); looks != 0; looks &= looks - 1) {
    const int at = 128 * (__ffs(looks) - 1) + 4 * lane;
    const uint4 four = *reinterpret_cast<const uint4*>(values + at);
    const unsigned bits[4] = {four.x, four.y, four.z, four.w};
    bool is_in[4];
    unsigned mine = size;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      is_in[i] = !(__uint_as_float(bits[i]) < low) && at + i < count;
      const unsigned votes = __ballot_sync(0xFFFFFFFFu, is_in[i]);
      mine += __popc(votes & below);
      size += __popc(votes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (is_in[i]) {
        if (mine < 128) {
          packed[mine] = bits[i];
          packed_places[mine] = place + at + i;
        }
        ++mine;
      }
    }
  }
  return size;
}

// Sum over the warp of the values of the lanes before `end`.
__device__ __forceinline__ unsigned di_sum_before(unsigned value, int end) {
  return __reduce_add_sync(0xFFFFFFFFu, threadIdx.x % 32 < end ? value : 0u);
}

__device__ __forceinline__ unsigned di_scan_warp(unsigned value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
    if (threadIdx.x % 32 >= distance) value += other;
  }
  return value;
}

__device__ __forceinline__ unsigned di_vote(bool value) {
  return __ballot_sync(0xFFFFFFFFu, value);
}
// Fewest bits to shift by, so that 2,048 bins hold the numbers up to `most`.
__device__ __forceinline__ unsigned di_shift_for(unsigned most) {
  return static_cast<unsigned>(max(0, 21 - __clz(most)));
}
__device__ __forceinline__ unsigned di_before(unsigned votes) {
  return __popc(votes & ((1u << (threadIdx.x % 32)) - 1u));
}
"""
