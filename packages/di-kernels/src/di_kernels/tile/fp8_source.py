"""CUDA helpers of the kernels that work on e4m3: weights to codes, rows to codes."""

E4M3_WEIGHTS = r"""
// Bytes of a 32-bit word by four selectors; `__byte_perm` would mask the selectors once more.
__device__ __forceinline__ unsigned di_permute(unsigned low, unsigned high, unsigned selectors) {
  unsigned result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selectors));
  return result;
}

// Four words of a 64 x 64 block of e2m1 codes in e4m3 fragment order: 32 of a thread's 64 e4m3
// values. A factor of two adds 8 to the byte of a normal e4m3 number, so the eight magnitudes 0 0.5
// 1 1.5 | 2 3 4 6 times a scale are its stored byte, in every place, plus a constant.
template <typename Value>
__device__ __forceinline__ void di_unpack_mxfp4_to_e4m3(const unsigned* codes, unsigned scales,
                                                        int half, Value* values) {
  unsigned* out = reinterpret_cast<unsigned*>(values) + 8 * half;
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    const unsigned upper = __dp4a(scales, 1u << (16 * group), 0u);
    const unsigned lower = __dp4a(scales, 1u << (16 * group + 8), 0u);
    const unsigned upper_small = upper * 0x01010100u + 0xFBF7F000u;
    const unsigned upper_large = upper * 0x01010101u + 0x0C080400u;
    const unsigned lower_small = lower * 0x01010100u + 0xFBF7F000u;
    const unsigned lower_large = lower * 0x01010101u + 0x0C080400u;
#pragma unroll
    for (int index = 2 * group; index < 2 * group + 2; ++index) {
      const unsigned word = codes[index];
      const unsigned selectors = word & 0x77777777u;
      out[2 * index] = di_permute(upper_small, upper_large, selectors) | (word & 0x80808080u);
      out[2 * index + 1] = di_permute(lower_small, lower_large, selectors >> 16) |
                           ((word * di_shift_left[3]) & 0x80808080u);
    }
  }
}
"""

FP8_ROWS = r"""
#include <cuda_bf16.h>
#include <cuda_fp8.h>

// Largest magnitude of eight values as the bits of a float: NaN is above infinity.
template <typename Value>
__device__ __forceinline__ void di_largest(const Value* values, int first, unsigned* largest) {
#pragma unroll
  for (int index = 0; index < 8; ++index) {
    const float value = static_cast<float>(values[first + index]);
    *largest = max(*largest, __float_as_uint(value) & 0x7FFFFFFFu);
  }
}

__device__ __forceinline__ unsigned di_warp_largest(unsigned value) {
  return __reduce_max_sync(0xFFFFFFFFu, value);
}

// Row maximum, never below 2^-100.
__device__ __forceinline__ float di_row_maximum(unsigned largest) {
  return __uint_as_float(max(largest, 0x0D800000u));
}

__device__ __forceinline__ float di_fp8_scale(unsigned largest) {
  const float scale = __fmul_rn(di_row_maximum(largest), 1.0f / 448.0f);
  return largest < 0x7F800000u ? scale : __uint_as_float(0x7FC00000u);
}

// Eight values to two words of e4m3.
template <typename Value>
__device__ __forceinline__ void di_to_fp8(const Value* values, int first, unsigned largest,
                                          unsigned* words) {
  const float factor = __fmul_rn(__frcp_rn(di_row_maximum(largest)), 448.0f);
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    unsigned result = 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int index = first + 4 * word + 2 * pair;
      const float2 scaled = make_float2(static_cast<float>(values[index]) * factor,
                                        static_cast<float>(values[index + 1]) * factor);
      result |= static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3))
                << (16 * pair);
    }
    words[first / 4 + word] = result;
  }
}
"""
