"""CUDA of a row's thread blocks in a cluster: a barrier, and words in each other's shared memory.

The barrier is written here because TileLang's own does not keep the compiler from moving plain
stores across it.
"""

CLUSTER = r"""
// One warp's fence publishes what the block did before its barrier; a releasing arrival would be a
// fence of every thread.
__device__ __forceinline__ void di_arrive_in_cluster() {
  __syncthreads();
  if (threadIdx.x < 32) asm volatile("fence.acq_rel.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void di_wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void di_sync_cluster() {
  di_arrive_in_cluster();
  di_wait_for_cluster();
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
