"""CUDA helpers of clusters: meetings, and mailboxes for words that blocks send each other.

The meeting is written here because TileLang's own does not keep the compiler from moving plain
stores across it. A fence of all memory of a cluster is one of the whole device in machine code, so
words travel by asynchronous stores and additions that a barrier in the receiver's memory counts.
"""

MAILBOXES = r"""
// Publishes what blocks wrote to their own shared memory.
__device__ __forceinline__ void di_meet_cluster() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;\n"
               "barrier.cluster.arrive.relaxed.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Shared address of the same object in another block of the cluster.
template <typename Object>
__device__ __forceinline__ unsigned di_peer_address(const Object* object, int rank) {
  const unsigned mine = static_cast<unsigned>(__cvta_generic_to_shared(object));
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(mine), "r"(rank));
  return address;
}
__device__ __forceinline__ void di_peer_load4(const unsigned* words, int rank, unsigned* values) {
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(di_peer_address(words, rank)) : "memory");
}

// A mailbox is full when all senders have announced their words and these have come in; it serves
// once. Its block prepares it before the cluster meets.
__device__ __forceinline__ void di_prepare_mailbox(unsigned long* mailbox, int senders) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(mailbox))), "r"(senders)
               : "memory");
}
__device__ __forceinline__ void di_announce(unsigned long* mailbox, int rank, unsigned words) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;"
               :: "r"(di_peer_address(mailbox, rank)), "r"(4 * words) : "memory");
}
__device__ __forceinline__ void di_mail(unsigned* word, unsigned long* mailbox, int rank,
                                        unsigned value) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
               :: "r"(di_peer_address(word, rank)), "r"(value), "r"(di_peer_address(mailbox, rank))
               : "memory");
}
__device__ __forceinline__ void di_mail_addition(unsigned* word, unsigned long* mailbox, int rank,
                                                 unsigned value) {
  asm volatile(
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
      "[%0], %1, [%2];"
      :: "r"(di_peer_address(word, rank)), "r"(value), "r"(di_peer_address(mailbox, rank))
      : "memory");
}
__device__ __forceinline__ void di_await_mail(const unsigned long* mailbox) {
  asm volatile(
      "{\n.reg .pred full;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 full, [%0], 0;\n"
      "@!full bra again_%=;\n}"
      :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(mailbox))) : "memory");
}
"""
