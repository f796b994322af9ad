"""CUDA helpers of thread blocks that share tiles: who does what, sums handed over in memory."""

SHARES = r"""
// Tiles of a list that stand before its empty places; for whole warps.
__device__ __forceinline__ int di_count_tiles(const int* tiles, int places) {
  int count = 0;
#pragma unroll 4
  for (int first = 0; first < places; first += 32) {
    const int place = first + (threadIdx.x & 31);
    const bool is_used = place < places && tiles[3 * place + 2] > tiles[3 * place + 1];
    count += __popc(__ballot_sync(0xFFFFFFFFu, is_used));
  }
  return count;
}

// Number of jobs of a thread block among `grid`, see `di_kernels.tile.shares`, and of one of them
// tile, first step and number of steps. Computed anew for every job: kept, it would cost registers.
__device__ __forceinline__ int di_job(int tiles, int steps, int least, int grid, int turn,
                                      int* job) {
  const int block = blockIdx.x, turns = (tiles + grid - 1) / grid;
  job[0] = turn * grid + block;
  job[1] = 0;
  job[2] = steps;
  if (tiles < grid || turns * steps - (tiles * steps + grid - 1) / grid < least) {
    return block < tiles ? (tiles - block + grid - 1) / grid : 0;
  }
  const int whole = tiles / grid - 1, first = whole * grid, left = (tiles - first) * steps;
  const int begin = static_cast<int>(static_cast<long long>(left) * block / grid);
  const int end = static_cast<int>(static_cast<long long>(left) * (block + 1) / grid);
  const int beginning = end % steps, behind = begin % steps;
  const int jobs = (beginning > 0) + whole + end / steps - (begin + steps - 1) / steps;
  if (turn == 0 && beginning > 0) {
    job[0] = first + end / steps;
    job[2] = beginning;
  } else if (turn >= jobs) {
    job[0] = first + begin / steps;
    job[1] = behind;
    job[2] = steps - behind;
  } else {
    turn -= beginning > 0;
    job[0] = turn < whole ? turn * grid + block
                          : first + (begin + steps - 1) / steps + turn - whole;
  }
  return jobs + (behind > 0);
}

// A thread's sums to memory and back, four of all threads side by side.
template <int kCount>
__device__ __forceinline__ void di_save_sums(float* place, const float* sums, int threads) {
#pragma unroll
  for (int index = 0; index < kCount; index += 4) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(place + index * threads + 4 * threadIdx.x), "f"(sums[index]),
                    "f"(sums[index + 1]), "f"(sums[index + 2]), "f"(sums[index + 3]) : "memory");
  }
}
template <int kCount>
__device__ __forceinline__ void di_load_sums(const float* place, float* sums, int threads) {
#pragma unroll
  for (int index = 0; index < kCount; index += 4) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sums[index]), "=f"(sums[index + 1]), "=f"(sums[index + 2]),
                   "=f"(sums[index + 3])
                 : "l"(place + index * threads + 4 * threadIdx.x) : "memory");
  }
}

// The warp's sums are in memory; and the wait of the warp that takes them, after which its flag is
// down again. The votes and barriers tell the compiler that the warp stays together, or it would
// compute stages and descriptors of products by thread.
__device__ __forceinline__ void di_raise(int* flag) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) {
    asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(flag) : "memory");
  }
  __syncwarp();
}
__device__ __forceinline__ void di_await(int* flag) {
  int value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  } while (__any_sync(0xFFFFFFFFu, value == 0));
  __syncwarp();
  asm volatile("st.relaxed.gpu.global.s32 [%0], 0;" :: "l"(flag) : "memory");
}
"""
