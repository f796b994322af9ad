"""CUDA helpers for kernels in which a lane holds 16 neighbouring channels of a row as float32.

Quantisers follow `di_kernels.formats` bit for bit: scales from the bits of the group's largest
magnitude, no approximate division, no fused multiply-add where the reference rounds twice. The
bits of magnitudes order like the magnitudes, with infinity and NaN above all numbers, so maxima are
taken of the bits.
"""

LANES = r"""
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#define DI_NAN __uint_as_float(0x7FC00000u)

__device__ __forceinline__ unsigned di_largest_bits(const float* values, unsigned least) {
  unsigned largest = least;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7FFFFFFFu);
  return largest;
}

// UE8M0 byte of a group of two lanes; every lane of the warp must call. `carry` and
// `code_exponent` are those of `formats.power_of_two_scale`.
__device__ __forceinline__ unsigned di_mx_scale(const float* values, unsigned least,
                                                unsigned carry, unsigned code_exponent) {
  unsigned largest = di_largest_bits(values, least);
  largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
  return largest >= 0x7F800000u ? 255u : ((largest + carry) >> 23) - code_exponent;
}

__device__ __forceinline__ float di_power(unsigned byte) {
  return byte == 255u ? DI_NAN : __uint_as_float(byte ? byte << 23 : 0x00400000u);
}

__device__ __forceinline__ float di_from_e4m3(unsigned byte) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
}

// e2m1 code of value / scale: the midpoints times the scale are exact, so nothing is divided.
__device__ __forceinline__ unsigned di_e2m1(float value, float scale) {
  const float size = fabsf(value);
  const unsigned code = !(size <= 0.25f * scale) + !(size < 0.75f * scale) +
                        !(size <= 1.25f * scale) + !(size < 1.75f * scale) +
                        !(size <= 2.5f * scale) + !(size < 3.5f * scale) +
                        !(size <= 5.0f * scale);
  return code | ((__float_as_uint(value) >> 31) << 3);
}

template <typename Word>
__device__ __forceinline__ void di_e2m1_words(const float* values, float scale, Word* codes) {
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    unsigned packed = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) packed |= di_e2m1(values[8 * word + i], scale) << (4 * i);
    codes[word] = packed;
  }
}

// The encoders give a lane's codes and its group's scale byte.
template <typename Word>
__device__ __forceinline__ unsigned di_encode_mxfp8(const float* values, Word* codes) {
  const unsigned byte = di_mx_scale(values, __float_as_uint(1e-4f), 0x1FFFFFu, 8u);
  const float inverse = byte == 255u ? DI_NAN : __uint_as_float((254u - byte) << 23);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    unsigned packed = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* pair = values + 4 * word + 2 * i;
      packed |= static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(
                    make_float2(pair[0] * inverse, pair[1] * inverse), __NV_SATFINITE,
                    __NV_E4M3)) << (16 * i);
    }
    codes[word] = packed;
  }
  return byte;
}

template <typename Word>
__device__ __forceinline__ unsigned di_encode_mxfp4(const float* values, Word* codes) {
  const unsigned byte = di_mx_scale(values, __float_as_uint(6 * 0x1p-126f), 0x3FFFFFu, 2u);
  di_e2m1_words(values, di_power(byte), codes);
  return byte;
}

template <typename Word>
__device__ __forceinline__ unsigned di_encode_nvfp4(const float* values, Word* codes) {
  const unsigned largest = di_largest_bits(values, __float_as_uint(6 * 0x1p-9f));
  const float scale = largest >= 0x7F800000u
      ? DI_NAN : fminf(__fdiv_rn(__uint_as_float(largest), 6.0f), 448.0f);
  const unsigned byte = __nv_cvt_float_to_fp8(scale, __NV_SATFINITE, __NV_E4M3);
  di_e2m1_words(values, di_from_e4m3(byte), codes);
  return byte;
}

// What the codes stand for.
template <typename Word>
__device__ __forceinline__ void di_decode_mxfp8(const Word* codes, unsigned byte, float* values) {
  const float scale = di_power(byte);
#pragma unroll
  for (int i = 0; i < 16; ++i)
    values[i] = di_from_e4m3((codes[i / 4] >> (8 * (i % 4))) & 0xFFu) * scale;
}

template <typename Word>
__device__ __forceinline__ void di_decode_e2m1(const Word* codes, float scale, float* values) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const unsigned code = codes[i / 8] >> (4 * (i % 8));
    const float size = __uint_as_float((code & 7u) << 22) * 0x1p126f;
    values[i] = ((code & 8u) ? -size : size) * scale;
  }
}

template <typename Word>
__device__ __forceinline__ void di_decode_mxfp4(const Word* codes, unsigned byte, float* values) {
  di_decode_e2m1(codes, di_power(byte), values);
}

template <typename Word>
__device__ __forceinline__ void di_decode_nvfp4(const Word* codes, unsigned byte, float* values) {
  di_decode_e2m1(codes, di_from_e4m3(byte), values);
}
"""

ROWS = r"""
__device__ __forceinline__ float di_as_bfloat16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ __forceinline__ void di_prefetch(const int* word) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(word));
}

// Sum of squares of 8 neighbouring channels.
__device__ __forceinline__ float di_squares(const float* values) {
  float sum = __fmul_rn(values[0], values[0]);
#pragma unroll
  for (int i = 1; i < 8; ++i) sum = __fmaf_rn(values[i], values[i], sum);
  return sum;
}

__device__ __forceinline__ float di_sum_over_warp(float value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
    value = __fadd_rn(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  return value;
}

__device__ __forceinline__ float di_inverse_rms(float squares, int size, float eps) {
  const float mean = __fdiv_rn(squares, static_cast<float>(size));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// a / b, correctly rounded, for b from 1 to 2 and a that is zero or neither tiny nor huge: the
// compiler's own steps without its branch, behind which no other division could start.
__device__ __forceinline__ float di_divide(float a, float b) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
  inverse = __fmaf_rn(inverse, __fmaf_rn(-b, inverse, 1.0f), inverse);
  float quotient = __fmul_rn(a, inverse);
  quotient = __fmaf_rn(inverse, __fmaf_rn(-b, quotient, a), quotient);
  return copysignf(__fmaf_rn(inverse, __fmaf_rn(-b, quotient, a), quotient), a);
}

// Means of a lane's two rows of values by the softmax of their gates, rounded once, as
// `ops.compress_pool` has them. The larger gate's weight is exp(0); NaN stays NaN.
__device__ __forceinline__ void di_pool(const float* members, const float* gates, float* values) {
  float sum[16], total[16];
  bool is_plain = true;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float behind = __fsub_rn(gates[i], gates[16 + i]), less = expf(-fabsf(behind));
    const float one = behind >= 0.0f ? 1.0f : less, two = behind <= 0.0f ? 1.0f : less;
    sum[i] = __fadd_rn(__fmul_rn(one, members[i]), __fmul_rn(two, members[16 + i]));
    total[i] = __fadd_rn(one, two);
    const float size = fabsf(sum[i]);
    is_plain &= (size == 0.0f) | ((size > 0x1p-80f) & (size < 0x1p80f));
    values[i] = di_as_bfloat16(di_divide(sum[i], total[i]));
  }
  if (!is_plain) {
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i] = di_as_bfloat16(__fdiv_rn(sum[i], total[i]));
  }
}

// Rotation of a lane's pairs; tables as in `RopeRotation`.
template <int kChannels = 16>
__device__ __forceinline__ void di_rotate(float* values, const float* cosine, const float* sine) {
#pragma unroll
  for (int i = 0; i < kChannels; i += 2) {
    const float first = values[i], second = values[i + 1];
    values[i] = __fadd_rn(__fmul_rn(first, cosine[i]), __fmul_rn(second, sine[i]));
    values[i + 1] = __fadd_rn(__fmul_rn(second, cosine[i + 1]), __fmul_rn(first, sine[i + 1]));
  }
}
"""
