"""CUDA helper of results: turned on their way into shared memory."""

RESULTS = r"""
// 8 x 8 matrices of pairs of values, turned: a pair of neighbours goes to neighbouring rows. Lanes
// 8 m to 8 m + 7 give the addresses of the rows of matrix m.
template <int kMatrices, typename Value>
__device__ __forceinline__ void di_store_turned(Value* place, const float* pairs) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(place));
  unsigned word[kMatrices];
#pragma unroll
  for (int index = 0; index < kMatrices; ++index) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(pairs[2 * index], pairs[2 * index + 1]);
    word[index] = *reinterpret_cast<const unsigned*>(&pair);
  }
  if constexpr (kMatrices == 4) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  } else if constexpr (kMatrices == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(address), "r"(word[0]), "r"(word[1]) : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
                 :: "r"(address), "r"(word[0]) : "memory");
  }
}
"""
