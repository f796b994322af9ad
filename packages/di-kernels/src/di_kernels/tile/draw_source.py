"""CUDA of the draw: Philox, the portable logarithm, and scores good enough to choose whom to ask.

Every function that decides works in float64 with one rounding per step and no fused multiply-add,
so a token is the one that the reference draws. The screen's noise comes from the device's fast
logarithm; its error is below 1.2e-5 (2^-21.4 in a logarithm between 1/2 and 2, 3 ulp elsewhere:
CUDA C++ programming guide, intrinsic functions).
"""

DRAW = r"""
// Philox4x32-10: the words of tokens 4 block .. 4 block + 3.
__device__ __forceinline__ void di_philox(unsigned block, unsigned purpose, long long position,
                                          long long seed, unsigned* words) {
  unsigned c0 = block, c1 = purpose, c2 = static_cast<unsigned>(position);
  unsigned c3 = static_cast<unsigned>(position >> 32);
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Natural logarithm of positive normal numbers by additions, products and one division.
__device__ __noinline__ double di_portable_log(double x) {
  const long long bits = __double_as_longlong(x);
  double exponent = static_cast<double>((bits >> 52) - 1023);
  double mantissa = __longlong_as_double((bits & 0xFFFFFFFFFFFFFLL) | 0x3FF0000000000000LL);
  if (mantissa > 1.4142135623730951) {
    mantissa = __dmul_rn(mantissa, 0.5);
    exponent = __dadd_rn(exponent, 1.0);
  }
  const double s = __ddiv_rn(__dadd_rn(mantissa, -1.0), __dadd_rn(mantissa, 1.0));
  const double z = __dmul_rn(s, s);
  double series = 1.0 / 21.0;
#pragma unroll
  for (int n = 9; n > 0; --n) series = __dadd_rn(__dmul_rn(series, z), 1.0 / (2 * n + 1));
  const double twice = __dadd_rn(s, s);
  const double low = __dadd_rn(__dmul_rn(twice, __dmul_rn(series, z)),
                               __dmul_rn(exponent, 0x1.A39EF35793C76p-33));
  return __dadd_rn(__dmul_rn(exponent, 0x1.62E42FEE00000p-1), __dadd_rn(twice, low));
}

__device__ __forceinline__ double di_noise(unsigned word) {
  const double complement =
      __dadd_rn(1.0, -__dmul_rn(__dadd_rn(static_cast<double>(word), 0.5), 0x1p-32));
  return -di_portable_log(-di_portable_log(complement));
}
// One of four numbers in registers, by the last bits of a place.
template <typename Number>
__device__ __forceinline__ Number di_one_of(const Number* four, int place) {
  const Number low = place & 1 ? four[1] : four[0], high = place & 1 ? four[3] : four[2];
  return place & 2 ? high : low;
}

// The noise within 1.2e-5.
__device__ __forceinline__ float di_screen_noise(unsigned word) {
  const float u = __fmaf_rn(__uint2float_rn(word), 0x1p-32f, 0x1p-33f);
  const float tail = 1.0f / 4 + u * (1.0f / 5 + u * (1.0f / 6));
  const float series = u * (1.0f + u * (1.0f / 2 + u * (1.0f / 3 + u * tail)));
  const float complement = __fmaf_rn(__uint2float_rn(~word), 0x1p-32f, 0x1p-33f);
  return -__logf(u < 0.0625f ? series : -__logf(complement));
}

// Factor of the logits in screened scores. It never overflows a product with a float32.
__device__ __forceinline__ double di_factor(double temperature) {
  return temperature == 0.0 ? 1.0 : fmin(1.0 / temperature, 1e200);
}

// Larger of two numbers, NaN above all.
__device__ __forceinline__ double di_worst(double a, double b) {
  return a != a || a > b ? a : b;
}

// Keeps the better of two exact scores, the lower token of equal ones.
__device__ __forceinline__ void di_keep(double* score, int* token, double other, int other_token) {
  if (other_token >= 0 && (token[0] < 0 || other > score[0] ||
                           (other == score[0] && other_token < token[0]))) {
    score[0] = other;
    token[0] = other_token;
  }
}
"""
