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
template <int kBits>
__device__ __forceinline__ unsigned di_key_if(unsigned bits, bool is_there) {
  return is_there ? di_score_key(bits << (32 - kBits)) >> (32 - kBits) : 0u;
}

// Keys of four candidates, the best of eight scores each, at most that of the largest finite one.
// All scores are asked for before the first is used; 16 bytes at a time where rows are aligned.
__device__ __forceinline__ void di_best_keys(const unsigned* scores, const int* candidates,
                                             unsigned* keys) {
  unsigned bits[4][8];
  const bool is_aligned = (reinterpret_cast<size_t>(scores) & 15) == 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned* eight = scores + 8ll * candidates[i];
    if (is_aligned) {
      *reinterpret_cast<uint4*>(bits[i]) = reinterpret_cast<const uint4*>(eight)[0];
      *reinterpret_cast<uint4*>(bits[i] + 4) = reinterpret_cast<const uint4*>(eight)[1];
    } else {
#pragma unroll
      for (int entry = 0; entry < 8; ++entry) bits[i][entry] = eight[entry];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = 0;
#pragma unroll
    for (int entry = 0; entry < 8; ++entry) keys[i] = max(keys[i], di_score_key(bits[i][entry]));
    keys[i] = min(keys[i], 0xFF7FFFFFu);
  }
}
__device__ __forceinline__ void di_best_keys(const unsigned short* scores, const int* candidates,
                                             unsigned* keys) {
  unsigned pairs[4][4];
  const bool is_aligned = (reinterpret_cast<size_t>(scores) & 15) == 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned short* eight = scores + 8ll * candidates[i];
    if (is_aligned) {
      *reinterpret_cast<uint4*>(pairs[i]) = *reinterpret_cast<const uint4*>(eight);
    } else {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        pairs[i][pair] = eight[2 * pair] | static_cast<unsigned>(eight[2 * pair + 1]) << 16;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    keys[i] = 0;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      keys[i] = max(keys[i], di_score_key(pairs[i][pair] << 16) >> 16);
      keys[i] = max(keys[i], di_score_key(pairs[i][pair] & 0xFFFF0000u) >> 16);
    }
    keys[i] = min(keys[i], 0xFF7Fu);
  }
}

// Adds one to `counts[bin]`. The lanes of a warp that share a bin make one addition in hardware.
__device__ __forceinline__ void di_count(unsigned* counts, unsigned bin, bool is_counted) {
  if (is_counted) atomicAdd(counts + bin, 1u);
}

// Appends a warp's keys from `low` up and their places to its `size` packed ones, at most 64.
template <int kKeys>
__device__ __forceinline__ unsigned di_pack(const unsigned* keys, unsigned low, int place,
                                            unsigned size, unsigned* packed_keys,
                                            int* packed_places) {
  const unsigned below = (1u << (threadIdx.x % 32)) - 1u;
#pragma unroll
  for (int s = 0; s < kKeys; ++s) {
    const bool is_in = keys[s] >= low;
    const unsigned votes = __ballot_sync(0xFFFFFFFFu, is_in);
    if (votes == 0) continue;
    const unsigned mine = size + __popc(votes & below);
    if (is_in && mine < 64) {
      packed_keys[mine] = keys[s];
      packed_places[mine] = place + 32 * s;
    }
    size += __popc(votes);
  }
  return size;
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
// Fewest bits to shift by, so that 2,048 bins hold the numbers up to `most`.
__device__ __forceinline__ unsigned di_shift_for(unsigned most) {
  return static_cast<unsigned>(max(0, 21 - __clz(most)));
}
__device__ __forceinline__ unsigned di_before(unsigned votes) {
  return __popc(votes & ((1u << (threadIdx.x % 32)) - 1u));
}
"""

CLUSTER = r"""
// One warp's fence publishes what the block did before its barrier; a releasing arrival would be a
// fence of every thread.
__device__ __forceinline__ void di_sync_cluster() {
  __syncthreads();
  if (threadIdx.x < 32) asm volatile("fence.acq_rel.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
