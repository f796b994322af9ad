"""CUDA helpers of the selections: ordered keys of scores, counts, sums over a block or cluster.

The barrier of a cluster is written here because TileLang's own does not keep the compiler from
moving plain stores across it.
"""

SELECT = r"""
// Key of a score's bits: the larger key is the larger score. -0 is +0, NaN is minus infinity. No
// score has key 0, which stands for an entry that is not there.
__device__ __forceinline__ unsigned di_score_key(unsigned bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) bits = 0xFF800000u;
  if (bits == 0x80000000u) bits = 0u;
  return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ unsigned di_score_key(unsigned short bits) {
  return di_score_key(static_cast<unsigned>(bits) << 16) >> 16;
}

// Key of the best of eight scores that follow each other, at most that of the largest finite one.
__device__ __forceinline__ unsigned di_best_key(const unsigned* scores) {
  unsigned bits[8], best = 0;
  if ((reinterpret_cast<size_t>(scores) & 15) == 0) {
    *reinterpret_cast<uint4*>(bits) = reinterpret_cast<const uint4*>(scores)[0];
    *reinterpret_cast<uint4*>(bits + 4) = reinterpret_cast<const uint4*>(scores)[1];
  } else {
#pragma unroll
    for (int entry = 0; entry < 8; ++entry) bits[entry] = scores[entry];
  }
#pragma unroll
  for (int entry = 0; entry < 8; ++entry) best = max(best, di_score_key(bits[entry]));
  return min(best, 0xFF7FFFFFu);
}
__device__ __forceinline__ unsigned di_best_key(const unsigned short* scores) {
  unsigned pairs[4], best = 0;
  if ((reinterpret_cast<size_t>(scores) & 15) == 0) {
    *reinterpret_cast<uint4*>(pairs) = reinterpret_cast<const uint4*>(scores)[0];
  } else {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
      pairs[pair] = scores[2 * pair] | static_cast<unsigned>(scores[2 * pair + 1]) << 16;
  }
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    best = max(best, di_score_key(pairs[pair] << 16) >> 16);
    best = max(best, di_score_key(pairs[pair] & 0xFFFF0000u) >> 16);
  }
  return min(best, 0xFF7Fu);
}

// Adds one to `counts[bin]` for every lane with `is_counted`; called by whole warps. Equal scores
// would make 32 additions to one word, so a warp of one bin adds once.
__device__ __forceinline__ void di_count(unsigned* counts, unsigned bin, bool is_counted) {
  if (!__any_sync(0xFFFFFFFFu, is_counted)) return;
  int is_same;
  __match_all_sync(0xFFFFFFFFu, is_counted ? bin : ~0u, &is_same);
  if (is_same) {
    if (threadIdx.x % 32 == 0) atomicAdd(counts + bin, 32u);
  } else if (is_counted) {
    atomicAdd(counts + bin, 1u);
  }
}

__device__ __forceinline__ unsigned di_scan_warp(unsigned value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
    if (threadIdx.x % 32 >= distance) value += other;
  }
  return value;
}

// Sum of the values of all threads before this one, by 512 threads; `sums`: 16 words.
__device__ __forceinline__ unsigned di_scan_block(unsigned value, unsigned* sums) {
  const unsigned inclusive = di_scan_warp(value);
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  const unsigned warps = di_scan_warp(sums[threadIdx.x % 16]);
  const unsigned before = __shfl_sync(0xFFFFFFFFu, warps, threadIdx.x / 32 - 1);
  return inclusive - value + (threadIdx.x < 32 ? 0u : before);
}

__device__ __forceinline__ unsigned di_sum_warp(unsigned value) {
  return __reduce_add_sync(0xFFFFFFFFu, value);
}
__device__ __forceinline__ unsigned di_vote(bool value) {
  return __ballot_sync(0xFFFFFFFFu, value);
}
// Fewest bits to shift a number below `limit` << `shift` by, so that 2,048 bins hold it.
__device__ __forceinline__ unsigned di_shift_for(unsigned limit, unsigned shift) {
  const int wanted = static_cast<int>(shift) - 11 + 32 - __clz(limit - 1);
  return wanted < 0 ? 0u : static_cast<unsigned>(wanted);
}
__device__ __forceinline__ unsigned di_before(unsigned votes) {
  return __popc(votes & ((1u << (threadIdx.x % 32)) - 1u));
}
"""

CLUSTER = r"""
__device__ __forceinline__ void di_sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Shared address of the same word in another block of the cluster.
__device__ __forceinline__ unsigned di_peer_address(const unsigned* word, int rank) {
  const unsigned mine = static_cast<unsigned>(__cvta_generic_to_shared(word));
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(mine), "r"(rank));
  return address;
}
__device__ __forceinline__ void di_peer_load4(const unsigned* words, int rank, unsigned* values) {
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(di_peer_address(words, rank)) : "memory");
}
__device__ __forceinline__ void di_peer_store(unsigned* word, int rank, unsigned value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(di_peer_address(word, rank)), "r"(value)
               : "memory");
}
__device__ __forceinline__ void di_peer_add(unsigned* word, int rank, unsigned value) {
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;"
               :: "r"(di_peer_address(word, rank)), "r"(value) : "memory");
}
"""
