"""CUDA of the draw: Philox, the portable logarithm, and scores good enough to choose whom to ask.

Every function that decides works in float64 with one rounding per step and no fused multiply-add,
so a token is the one that the reference draws. The screen's noise comes from the device's fast
logarithm; its error is below 1.2e-5 (2^-21.4 in a logarithm between 1/2 and 2, 3 ulp elsewhere:
CUDA C++ programming guide, intrinsic functions), and `di_margin` leaves eight times that.
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

// What is compared in the end; temperature 0 takes the logit alone.
__device__ __forceinline__ double di_score(double logit, double largest, double temperature,
                                           unsigned word) {
  if (temperature == 0.0) return logit;
  const double complement =
      __dadd_rn(1.0, -__dmul_rn(__dadd_rn(static_cast<double>(word), 0.5), 0x1p-32));
  const double noise = -di_portable_log(-di_portable_log(complement));
  return __dadd_rn(__ddiv_rn(__dadd_rn(logit, -largest), temperature), noise);
}

// The noise within 1.2e-5.
__device__ __forceinline__ float di_screen_noise(unsigned word) {
  const float u = __fmaf_rn(__uint2float_rn(word), 0x1p-32f, 0x1p-33f);
  const float series =
      u * (1.0f + u * (1.0f / 2 + u * (1.0f / 3 + u * (1.0f / 4 + u * (1.0f / 5 + u / 6)))));
  const float complement = __fmaf_rn(__uint2float_rn(~word), 0x1p-32f, 0x1p-33f);
  return -__logf(u < 0.0625f ? series : -__logf(complement));
}

// Factor of the logits in screened scores. It never overflows a product with a float32.
__device__ __forceinline__ double di_factor(double temperature) {
  return temperature == 0.0 ? 1.0 : fmin(1.0 / temperature, 1e200);
}

// How far below the best screened score an exact one may win.
__device__ __forceinline__ double di_margin(double best, double temperature) {
  return temperature == 0.0 ? 0.0 : 1e-4 + 1e-14 * fabs(best);
}

// Larger of two numbers, NaN above all.
__device__ __forceinline__ double di_worst(double a, double b) {
  return a != a || a > b ? a : b;
}

// A state: best and second best screened score, largest allowed logit, largest logit of all.
__device__ __forceinline__ void di_clear(double* state, int* token) {
  const double least = -__longlong_as_double(0x7FF0000000000000LL);
  state[0] = state[1] = state[2] = state[3] = least;
  token[0] = -1;
}

__device__ __forceinline__ void di_merge(double* state, int* token, const double* other,
                                         int other_token) {
  const double loser = fmin(state[0], other[0]);
  if (other[0] > state[0]) token[0] = other_token;
  state[1] = fmax(loser, fmax(state[1], other[1]));
  state[0] = fmax(state[0], other[0]);
  state[2] = fmax(state[2], other[2]);
  state[3] = di_worst(state[3], other[3]);
}

__device__ __forceinline__ void di_merge_over_warp(double* state, int* token) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    double other[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) other[i] = __shfl_xor_sync(0xFFFFFFFFu, state[i], step);
    const int other_token = __shfl_xor_sync(0xFFFFFFFFu, token[0], step);
    di_merge(state, token, other, other_token);
  }
}

// Adds four tokens to a state. `mask` holds the bits of 32 tokens.
template <typename Logit>
__device__ __forceinline__ void di_screen(const Logit* logits, unsigned mask, int block,
                                          double factor, double temperature, long long seed,
                                          long long position, unsigned purpose, double* state,
                                          int* token) {
  unsigned words[4] = {0u, 0u, 0u, 0u};
  const unsigned allowed = mask >> (block % 8 * 4) & 15u;
  if (temperature != 0.0 && allowed != 0) di_philox(block, purpose, position, seed, words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const double logit = static_cast<double>(logits[i]);
    state[3] = di_worst(state[3], logit);
    if ((allowed >> i) & 1u) {
      state[2] = fmax(state[2], logit);
      double score = logit * factor;
      if (temperature != 0.0) score += static_cast<double>(di_screen_noise(words[i]));
      if (score > state[0]) {
        state[1] = state[0];
        state[0] = score;
        token[0] = 4 * block + i;
      } else {
        state[1] = fmax(state[1], score);
      }
    }
  }
}

// Keeps the better of two exact scores, the lower token of equal ones.
__device__ __forceinline__ void di_keep(double* score, int* token, double other, int other_token) {
  if (other_token >= 0 && (token[0] < 0 || other > score[0] ||
                           (other == score[0] && other_token < token[0]))) {
    score[0] = other;
    token[0] = other_token;
  }
}

// Exact scores of four tokens.
template <typename Logit>
__device__ __forceinline__ void di_decide(const Logit* logits, unsigned mask, int block,
                                          double largest, double temperature, long long seed,
                                          long long position, unsigned purpose, double* score,
                                          int* token) {
  unsigned words[4];
  di_philox(block, purpose, position, seed, words);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if ((mask >> (block % 8 * 4 + i)) & 1u)
      di_keep(score, token,
              di_score(static_cast<double>(logits[i]), largest, temperature, words[i]),
              4 * block + i);
}

// The same of one token.
__device__ __forceinline__ double di_score_of(double logit, int token, double largest,
                                              double temperature, long long seed,
                                              long long position, unsigned purpose) {
  unsigned words[4];
  di_philox(token / 4, purpose, position, seed, words);
  const unsigned low = token & 1 ? words[1] : words[0], high = token & 1 ? words[3] : words[2];
  return di_score(logit, largest, temperature, token & 2 ? high : low);
}

__device__ __forceinline__ void di_keep_over_warp(double* score, int* token) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(0xFFFFFFFFu, score[0], step);
    const int other_token = __shfl_xor_sync(0xFFFFFFFFu, token[0], step);
    di_keep(score, token, other, other_token);
  }
}

// 0 good, 1 NaN, 2 infinite, 3 nothing allowed.
__device__ __forceinline__ unsigned char di_status(double largest_allowed, double largest) {
  const double infinity = __longlong_as_double(0x7FF0000000000000LL);
  if (largest != largest) return 1;
  if (largest == infinity) return 2;
  return largest_allowed == -infinity ? 3 : 0;
}

// Whether a part whose best or second best screened score is `score` must be looked at.
__device__ __forceinline__ bool di_is_close(double score, double best, double margin) {
  return isfinite(best) ? score >= best - margin : true;
}
"""
