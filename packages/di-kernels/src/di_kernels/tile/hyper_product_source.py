"""CUDA helpers of the hyper-connections' product: factors in three pieces, matrix instructions.

A lane's operands come from where it loaded them: the columns of a product may stand in any order,
so a lane takes four neighbouring columns of a step where the instruction asks for two pairs.
"""

PRODUCT = r"""
__device__ __forceinline__ unsigned di_pair(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Copies four numbers, or writes zeros, without a register in between.
__device__ __forceinline__ void di_copy_four(float* to, const float* from, int is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from),
                  "r"(is_there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void di_await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Factors of three groups of eight mixes, eight columns each, as three bfloat16 numbers whose sum
// they are: words of pairs by piece, group and pair.
__device__ __forceinline__ void di_split_factors(const float* factors, unsigned* pieces) {
#pragma unroll
  for (int pair = 0; pair < 12; ++pair) {
    float low = factors[2 * pair], high = factors[2 * pair + 1];
#pragma unroll
    for (int piece = 0; piece < 3; ++piece) {
      const unsigned word = di_pair(low, high);
      pieces[12 * piece + pair] = word;
      low -= __uint_as_float(word << 16);
      high -= __uint_as_float(word & 0xFFFF0000u);
    }
  }
}

__device__ __forceinline__ void di_matrix_step(float* sums, const unsigned* upper,
                                               const unsigned* lower, const unsigned* other) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(upper[0]), "r"(lower[0]), "r"(upper[1]), "r"(lower[1]), "r"(other[0]),
                 "r"(other[1]));
}

// Products of 16 rows and 24 mixes over a warp's 32 columns. A lane has eight columns of a row of
// the upper and of the lower half; it gets two rows by two mixes for each group of eight. The small
// pieces have sums of their own.
template <typename Value>
__device__ __forceinline__ void di_multiply(const Value* upper, const Value* lower,
                                            const unsigned* pieces, float* products) {
  const unsigned* a = reinterpret_cast<const unsigned*>(upper);
  const unsigned* b = reinterpret_cast<const unsigned*>(lower);
  float rest[12];
#pragma unroll
  for (int i = 0; i < 12; ++i) products[i] = rest[i] = 0.0f;
#pragma unroll
  for (int piece = 2; piece >= 0; --piece)
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int group = 0; group < 3; ++group)
        di_matrix_step((piece == 0 ? products : rest) + 4 * group, a + 2 * step, b + 2 * step,
                       pieces + 12 * piece + 4 * group + 2 * step);
#pragma unroll
  for (int i = 0; i < 12; ++i) products[i] += rest[i];
}

// Sums of squares of the same rows: the diagonals of their products with themselves. The lanes
// whose place in a group of four is half their row have them.
template <typename Value>
__device__ __forceinline__ void di_square(const Value* upper, const Value* lower, int row,
                                          float* squares) {
  const unsigned* a = reinterpret_cast<const unsigned*>(upper);
  const unsigned* b = reinterpret_cast<const unsigned*>(lower);
  float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    di_matrix_step(first, a + 2 * step, b + 2 * step, a + 2 * step);
    di_matrix_step(second, a + 2 * step, b + 2 * step, b + 2 * step);
  }
  squares[0] = row & 1 ? first[1] : first[0];
  squares[1] = row & 1 ? second[3] : second[2];
}
"""
