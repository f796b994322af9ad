"""CUDA of the draw from a row beside `best_source`: a screen of all tokens, and the exact choice.

Noise is at most -ln u of its uniform number u, which takes one logarithm, and at most 22.9 whatever
u is. Only a token that these bounds lift near the best of its warp so far gets its noise.
"""

DRAW_ROW = r"""
// Noise of the largest u, and of the smallest.
constexpr float kLeastNoise = -3.14f, kMostNoise = 22.9f;

// A draw's numbers: largest logit, temperature; 1 / temperature, at most 1e200, so that products
// with logits do not overflow.
struct DiDraw {
  double numbers[2], factor;
  long long seed, position;
  unsigned purpose;
  bool is_small;  // whether float32 holds the factor

  __device__ __forceinline__ DiDraw(double largest, double temperature, long long seed_,
                                    long long position_, unsigned purpose_)
      : numbers{largest, temperature}, factor(di_factor(temperature)), seed(seed_),
        position(position_), purpose(purpose_) {
    is_small = factor <= 1e30;
  }
  // Relative logits.
  __device__ __forceinline__ float relative(float x) const {
    return is_small ? __fmul_rn(__fsub_rn(x, static_cast<float>(numbers[0])),
                                static_cast<float>(factor))
                    : relative(static_cast<double>(x));
  }
  __device__ __forceinline__ float relative(double x) const {
    return static_cast<float>(__dadd_rn(x, -numbers[0]) * factor);
  }
  __device__ __forceinline__ void words(int token, unsigned* four) const {
    di_philox(token / 4, purpose, position, seed, four);
  }
};

// What noise is at most.
__device__ __forceinline__ float di_noise_bound(unsigned word) {
  return -__logf(__fmaf_rn(__uint2float_rn(word), 0x1p-32f, 0x1p-33f));
}
// Largest score of a warp, less by what screening is off.
__device__ __forceinline__ float di_refused_in_warp(float best) {
  return di_score_of(__reduce_max_sync(0xFFFFFFFFu, di_order32(best))) - 2.0f * kNear;
}

template <typename Logit>
__device__ __forceinline__ DiBest di_screen(const Logit* kept, int first, int run,
                                            const DiDraw& draw) {
  const int lane = threadIdx.x % 32;
  DiBest best;
  float refused = kLeastNoise - 2.0f * kNear;
#pragma unroll 1
  for (int at = 4 * lane; at < run; at += kStep) {
    Logit x[4];
    float scores[4];
    di_load_logits(kept + at, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = draw.relative(x[i]);
    const float most = fmaxf(fmaxf(scores[0], scores[1]), fmaxf(scores[2], scores[3]));
    if (!__any_sync(0xFFFFFFFFu, most + kMostNoise >= refused)) continue;
    unsigned words[4], asked = 0;
    draw.words(first + at, words);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (scores[i] + di_noise_bound(words[i]) >= refused) asked |= 1u << i;
    if (!__any_sync(0xFFFFFFFFu, asked != 0)) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if ((asked >> i) & 1u) best.see(scores[i] + di_screen_noise(words[i]), first + at + i);
    refused = fmaxf(refused, di_refused_in_warp(best.first));
  }
  return best;
}

__device__ __noinline__ double di_score(double logit, double largest, double temperature,
                                        unsigned word) {
  return __dadd_rn(__ddiv_rn(__dadd_rn(logit, -largest), temperature), di_noise(word));
}

// Exact scores of a thread's tokens that may win: its best, or where a second comes near too, and
// with it its warp's, whatever of the run is near.
template <typename Logit>
__device__ __forceinline__ void di_decide(const Logit* kept, int first, int run,
                                          const DiDraw& draw, const DiBest& best, float near,
                                          double* score, int* token) {
  unsigned words[4];
  if (__any_sync(0xFFFFFFFFu, best.second >= near)) {
#pragma unroll 1
    for (int at = 4 * (threadIdx.x % 32); at < run; at += kStep) {
      draw.words(first + at, words);
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const unsigned word = di_one_of(words, i);
        const Logit x = kept[at + i];
        if (draw.relative(x) + di_noise_bound(word) >= near)
          di_keep(score, token,
                  di_score(static_cast<double>(x), draw.numbers[0], draw.numbers[1], word),
                  first + at + i);
      }
    }
  } else if (best.token >= 0 && best.first >= near) {
    draw.words(best.token, words);
    di_keep(score, token,
            di_score(static_cast<double>(kept[best.token - first]), draw.numbers[0],
                     draw.numbers[1], di_one_of(words, best.token)),
            best.token);
  }
}

// 0 good, 1 NaN, 2 infinite, 3 nothing allowed.
__device__ __forceinline__ unsigned char di_status(const double* state) {
  if (state[0] != state[0]) return 1;
  if (state[0] == di_infinity()) return 2;
  return state[1] == -di_infinity() ? 3 : 0;
}

// Sends the block's winner; temperature 0 takes the first of the largest logits. `word` is one in
// shared memory.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_draw_part(const Logit* kept, int first, int run, int rank,
                                             const double* state, double temperature,
                                             long long seed, long long position, unsigned purpose,
                                             unsigned* word, double* of_warps, double* winners) {
  double score = 0.0;
  int token = -1;
  if (di_status(state) == 0) {
    if (temperature == 0.0) {
      const Logit largest = static_cast<Logit>(state[1]);
#pragma unroll 4
      for (int at = run - 32 + threadIdx.x % 32; at >= 0; at -= 32)
        if (kept[at] == largest) token = first + at;
    } else {
      const DiDraw draw(state[1], temperature, seed, position, purpose);
      const DiBest best = di_screen(kept, first, run, draw);
      const float near = di_near_in_block(best.first, word);
      di_decide(kept, first, run, draw, best, near, &score, &token);
    }
  }
  di_send_best<kBlocks>(score, token, rank, of_warps, winners);
}

template <int kBlocks>
__device__ __forceinline__ void di_write_drawn(const double* state, const double* winners,
                                               int64_t* token_id, unsigned char* status) {
  const int token = di_best_of<kBlocks>(winners);
  if (threadIdx.x == 0) *token_id = token, *status = di_status(state);
}
"""
