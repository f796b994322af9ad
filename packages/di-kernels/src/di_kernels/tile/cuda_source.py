"""CUDA helpers that the TileLang kernels call: bit tricks no tile language expresses.

Every trick rests on one fact: the bits of an e2m1 or e4m3 code, placed where bfloat16 has its sign,
low exponent bits and high mantissa bits, read as the value times 2^-126 (e2m1) or 2^-120 (e4m3),
subnormal codes included. The multiplication that takes this factor back applies the block's scale
too, so a scale costs nothing. Left shifts are multiplications by constants from constant memory:
the compiler cannot turn them back into shifts, and they run on another pipe than the masks.
"""

COMMON = r"""
#include <cuda_bf16.h>
__constant__ unsigned di_shift_left[5] = {2u, 4u, 8u, 16u, 64u};

// Product of bfloat16 pairs, rounded to nearest. Below sm_90 there is only the fused form; adding
// -0.0 changes no product.
__device__ __forceinline__ unsigned di_multiply_pair(unsigned a, unsigned b) {
  unsigned result;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return result;
}

// One half of a word in both halves. As a move of halves it becomes a modifier of the
// multiplication and costs nothing; the fused form below sm_90 has none.
__device__ __forceinline__ unsigned di_both_halves(unsigned word, int half) {
#if __CUDA_ARCH__ >= 900
  unsigned both;
  if (half == 0) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(both) : "r"(word));
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(both) : "r"(word));
  }
  return both;
#else
  return __byte_perm(word, 0, half == 0 ? 0x1010 : 0x3232);
#endif
}

// Ends the thread; for whole blocks without work, before they wait for anything.
__device__ __forceinline__ void di_exit_if(bool is_idle) {
  if (is_idle) asm volatile("exit;");
}

template <typename Value>
__device__ __forceinline__ Value di_at(const Value* values, int index) { return values[index]; }

template <typename Value>
__device__ __forceinline__ void di_put(Value* values, int index, Value value) {
  values[index] = value;
}
"""

WEIGHTS = r"""
// Four words of a 64 x 64 block of e2m1 codes in fragment order: 32 bfloat16 values of a thread.
// `scales`: bytes (group 0 row g, group 0 row g + 8, group 1 row g, group 1 row g + 8), plus 126.
template <typename Value>
__device__ __forceinline__ void di_unpack_mxfp4(const unsigned* codes, unsigned scales,
                                                Value* values) {
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    // The dot product picks a byte and shifts it to the exponent, off the pipe of the masks.
    const unsigned upper = di_both_halves(__dp4a(scales, 128u << (16 * group), 0u), 0);
    const unsigned lower = di_both_halves(__dp4a(scales, 128u << (16 * group + 8), 0u), 0);
#pragma unroll
    for (int step = 2 * group; step < 2 * group + 2; ++step) {
      const unsigned word = codes[step];
      unsigned* pair = out + 4 * step;
      pair[0] = di_multiply_pair(word & 0x81C081C0u, upper);
      pair[1] = di_multiply_pair(((word * di_shift_left[2]) & 0x01C001C0u) |
                                 ((word * di_shift_left[0]) & 0x80008000u), lower);
      pair[2] = di_multiply_pair((word * di_shift_left[4]) & 0x81C081C0u, upper);
      pair[3] = di_multiply_pair(((word >> 4) & 0x01C001C0u) |
                                 ((word * di_shift_left[1]) & 0x80008000u), lower);
    }
  }
}

// Eight words of a block of e4m3 codes. `scales`: bfloat16 multipliers of both groups of columns.
template <typename Value>
__device__ __forceinline__ void di_unpack_mxfp8(const unsigned* codes, unsigned scales,
                                                Value* values) {
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    const unsigned scale = di_both_halves(scales, group);
#pragma unroll
    for (int index = 4 * group; index < 4 * group + 4; ++index) {
      const unsigned word = codes[index];
      out[2 * index] = di_multiply_pair(word & 0x87F087F0u, scale);
      out[2 * index + 1] = di_multiply_pair(((word * di_shift_left[0]) & 0x80008000u) |
                                            ((word >> 3) & 0x07000700u) |
                                            ((word * di_shift_left[3]) & 0x00F000F0u), scale);
    }
  }
}
"""

SWIGLU = r"""
// Clamped SwiGLU of two projections rounded to bfloat16, times the routing weight.
__device__ __forceinline__ float di_swiglu(float gate, float up, float limit, float weight) {
  gate = fminf(__bfloat162float(__float2bfloat16(gate)), limit);
  up = fminf(fmaxf(__bfloat162float(__float2bfloat16(up)), -limit), limit);
  return __fdividef(gate, 1.0f + __expf(-gate)) * up * weight;
}
"""

RECORDS = r"""
// Records become bfloat16 keys times 2^-16: the factor that takes the raw bits back would overflow
// for e4m3 scales of 4 and more. Inside every 8 channels the order is 0 4 1 5 2 6 3 7.

// 32 e2m1 codes and two e4m3 scales (half `half` of `scales`).
template <typename Value>
__device__ __forceinline__ void di_unpack_nvfp4_record(const unsigned* codes, unsigned scales,
                                                       int half, Value* values) {
  const unsigned short bytes = static_cast<unsigned short>(half ? scales >> 16 : scales);
  unsigned halves, multiplier[2];
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bytes));
  float low, high;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high) : "r"(halves));
  low *= 0x1p110f;
  high *= 0x1p110f;
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(multiplier[0]) : "f"(low));
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(multiplier[1]) : "f"(high));
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int index = 0; index < 4; ++index) {
    const unsigned word = codes[index], scale = multiplier[index / 2];
    // One multiplication shifts sign and magnitude of two codes by different distances.
    const unsigned upper = word >> 8;
    out[4 * index] = di_multiply_pair(((word & 0x000F000Fu) * 0x1040u) & 0x81C081C0u, scale);
    out[4 * index + 1] = di_multiply_pair(((word & 0x00F000F0u) * 0x0104u) & 0x81C081C0u, scale);
    out[4 * index + 2] = di_multiply_pair(((upper & 0x000F000Fu) * 0x1040u) & 0x81C081C0u, scale);
    out[4 * index + 3] = di_multiply_pair(((upper & 0x00F000F0u) * 0x0104u) & 0x81C081C0u, scale);
  }
}

// 16 e4m3 codes and the UE8M0 byte `byte` of `scales`.
template <typename Value>
__device__ __forceinline__ void di_unpack_mxfp8_record(const unsigned* codes, unsigned scales,
                                                       int byte, Value* values) {
  const unsigned exponent = ((scales >> (8 * byte)) & 0xFF) + 104;
  const unsigned scale = (exponent << 7) | (exponent << 23);
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int index = 0; index < 2; ++index) {
    const unsigned first = codes[2 * index], second = codes[2 * index + 1];
#pragma unroll
    for (int channel = 0; channel < 4; ++channel) {
      const unsigned pair = __byte_perm(first, second, (channel << 4) | ((channel + 4) << 12));
      out[4 * index + channel] = di_multiply_pair(
          (pair & 0x80008000u) | ((pair >> 4) & 0x07F007F0u), scale);
    }
  }
}

// Eight bfloat16 values from natural order to the order of the keys, and back.
template <typename Value>
__device__ __forceinline__ void di_interleave_halves(const Value* in, Value* out) {
#pragma unroll
  for (int channel = 0; channel < 4; ++channel) {
    out[2 * channel] = in[channel];
    out[2 * channel + 1] = in[channel + 4];
  }
}
template <typename Value>
__device__ __forceinline__ void di_separate_halves(const Value* in, Value* out) {
#pragma unroll
  for (int channel = 0; channel < 4; ++channel) {
    out[channel] = in[2 * channel];
    out[channel + 4] = in[2 * channel + 1];
  }
}
"""

RECORD_COPIES = r"""
// Starts a copy of 16 bytes into shared memory, zeros if the place is negative; the thread that
// started it sees it after `di_wait_copies`.
template <typename Value>
__device__ __forceinline__ void di_copy_unit(Value* shared, const Value* global, int place,
                                             bool wanted) {
  asm volatile("{.reg .pred none, wanted; setp.lt.s32 none, %2, 0; setp.ne.u32 wanted, %3, 0;"
               "@wanted cp.async.cg.shared.global [%0], [%1], 16, none;}"
               :: "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global),
                  "r"(place), "r"(static_cast<unsigned>(wanted)));
}
__device__ __forceinline__ void di_wait_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// A barrier of some warps; TileLang's own does not keep the compiler from moving accesses.
__device__ __forceinline__ void di_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ int di_divide(int value, int divisor) {
  return static_cast<int>(static_cast<unsigned>(value) / static_cast<unsigned>(divisor));
}

// Unit where the record of a slot starts, -1 for none.
__device__ __forceinline__ int di_start_of(int slot, int entries, int stride, int offset,
                                           int record) {
  const int block = di_divide(slot, entries);
  return slot < 0 ? -1 : block * stride + offset + (slot - block * entries) * record;
}

// Which threads of a warp vote so, one bit each.
__device__ __forceinline__ void di_put_votes(unsigned* word, bool vote) {
  const unsigned votes = __ballot_sync(0xFFFFFFFFu, vote);
  if ((threadIdx.x & 31) == 0) *word = votes;
}
"""

SOFTMAX = r"""
// A thread's rows g and g + 8 of an accumulator of wgmma, of which three neighbours have the rest.

__device__ __forceinline__ float di_power(float score, float factor, const float* reference,
                                          float* sums, int row) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(score, factor, -reference[row])));
  sums[row] += power;
  return power;
}

// Whether a score of the warp is so large that the references must move.
__device__ __forceinline__ int di_are_large(const float* highs, float factor,
                                            const float* reference) {
  const float over = fmaxf(fmaf(highs[0], factor, -reference[0]),
                           fmaf(highs[1], factor, -reference[1]));
  return __any_sync(0xFFFFFFFFu, over > 12.0f);
}

__device__ __forceinline__ void di_raise(float* highs, int row, float score) {
  highs[row] = fmaxf(highs[row], score);
}

__device__ __forceinline__ void di_move_references(const float* highs, float factor,
                                                   float* reference, float* alpha,
                                                   float* totals) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float high = highs[row];
    high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xFFFFFFFFu, high, 2));
    high = fmaxf(high * factor, reference[row]);
    alpha[row] = reference[row] > -1e30f ? exp2f(reference[row] - high) : 1.0f;
    reference[row] = high;
    totals[row] *= alpha[row];
  }
}

__device__ __forceinline__ void di_add_up(float* totals) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    totals[row] += __shfl_xor_sync(0xFFFFFFFFu, totals[row], 1);
    totals[row] += __shfl_xor_sync(0xFFFFFFFFu, totals[row], 2);
  }
}

// Whether a factor of the warp is not one.
__device__ __forceinline__ int di_scale_any(const float* factors) {
  return __any_sync(0xFFFFFFFFu, factors[0] != 1.0f || factors[1] != 1.0f);
}
"""

ROTATION = r"""
// Rotates four pairs of neighbouring channels in place, values * cosines + swapped * sign * sines.
// Products and sum are rounded one by one in float32, as `apply_rope` does.
template <typename Value>
__device__ __forceinline__ void di_rotate(Value* values, const float* cosines, const float* sines,
                                          float sign) {
#pragma unroll
  for (int first = 0; first < 8; first += 2) {
    const int second = first + 1;
    const float x = static_cast<float>(values[first]), y = static_cast<float>(values[second]);
    values[first] = static_cast<Value>(
        __fadd_rn(__fmul_rn(x, cosines[first]), __fmul_rn(y, sign * sines[first])));
    values[second] = static_cast<Value>(
        __fadd_rn(__fmul_rn(y, cosines[second]), __fmul_rn(x, sign * sines[second])));
  }
}
"""

PEERS = r"""
// All threads of a cluster; TileLang's own does not keep the compiler from moving accesses.
__device__ __forceinline__ void di_sync_peers() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Sum over the blocks of a cluster, first to last, of four floats at the same shared place.
__device__ __forceinline__ void di_sum_of_peers(const float* place, int blocks, float* sum) {
  const unsigned mine = static_cast<unsigned>(__cvta_generic_to_shared(place));
#pragma unroll
  for (int rank = 0; rank < blocks; ++rank) {
    unsigned peer;
    float4 part;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(mine), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w) : "r"(peer) : "memory");
    sum[0] = rank ? sum[0] + part.x : part.x;
    sum[1] = rank ? sum[1] + part.y : part.y;
    sum[2] = rank ? sum[2] + part.z : part.z;
    sum[3] = rank ? sum[3] + part.w : part.w;
  }
}
"""

FEW_TOKENS = r"""
// Where a lane finds its part of 32 columns of a row of x in shared memory (128 bytes a row,
// 128-byte swizzle); the other 32 columns are 64 bytes away by exclusive or. Opaque, so that it is
// kept and not computed again.
__device__ __forceinline__ int di_lane_offset() {
  const int lane = threadIdx.x & 31;
  int offset = (lane & 7) * 128 + (((lane >> 3) ^ (lane & 7)) << 4);
  asm volatile("" : "+r"(offset));
  return offset;
}

// Adds a block of 64 columns: weights of a thread in fragment order, rows of x at `x`, in bfloat16.
template <int kTokens, typename Row, typename Value>
__device__ __forceinline__ void di_multiply_few(const Row* x, int offset, const Value* weights,
                                                float* total) {
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(x));
  const unsigned* a = reinterpret_cast<const unsigned*>(weights);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile = 0; tile < kTokens / 8; ++tile) {
      unsigned b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(place + (offset ^ (64 * half)) + 1024 * tile) : "memory");
      float* sum = total + 4 * tile;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const unsigned* rows = a + 8 * half + 4 * step;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]),
                       "r"(b[2 * step]), "r"(b[2 * step + 1]));
      }
    }
  }
}
"""
