"""CUDA of the ratio test beside `best_source`: the law of a row, the test, the draw behind it.

A cluster of blocks, or one block, decides a request: it goes through the drafts until one is
refused. Where the test of a draft fails, all tokens of its row are looked at: what the target has
more of than the draft's law is added up, and its logarithm with fast noise is screened. What comes
near the best is scored by the reference's own steps, so the token is its.

A draft's law may be of all tokens, or of a list of them. A list's tokens leave the block's part of
the row and are looked at apart: of the others the draft's law has nothing. Sums are those of fast
exponentials unless they are near the floor.
"""

RATIO = r"""
constexpr unsigned kAccept = 2u << 24, kRest = 3u << 24;
// Least sum of what a target has more of that is drawn from; least rough one that surely is.
constexpr double kRestFloor = 1e-7, kRoughFloor = 1e-4;
// What a draft was drawn from: it alone, all tokens, listed tokens.
enum { kCertain, kDense, kOfList };
// Probability of a token by the logarithm of all masses; `numbers` as in a law.
__device__ __noinline__ double di_probability(double logit, double largest, double temperature,
                                              double log_total) {
  const double numbers[2] = {largest, temperature};
  return exp(__dadd_rn(di_relative(logit, numbers), -log_total));
}

// One row with the law of the draft behind it; `numbers` are largest logit and temperature.
template <typename Logit>
struct DiTest {
  const Logit* row;
  const unsigned* mask;
  double numbers[2], log_total;
  long long seed, position;
  int64_t draft;
  const float* weights32;
  const double* weights64;
  const int64_t* token_ids;
  int kind, size, vocab_size, place;

  __device__ __forceinline__ bool is_token(int64_t token) const {
    return token >= 0 && token < vocab_size;
  }
  __device__ __forceinline__ double probability(double logit) const {
    return di_probability(logit, numbers[0], numbers[1], log_total);
  }
  // Probability that the target gives a token.
  __device__ __forceinline__ double target(int token) const {
    return ((di_mask_word(mask, token) >> (token % 32)) & 1u) == 0
               ? 0.0 : probability(static_cast<double>(row[token]));
  }
  // Probability of a column of the draft's law.
  __device__ __forceinline__ double weight(int column) const {
    return exp(weights32 != nullptr ? static_cast<double>(weights32[column]) : weights64[column]);
  }
  __device__ __forceinline__ double dense(int token) const {
    return token < size ? weight(token) : 0.0;
  }
  // The logarithm of the same, roughly.
  __device__ __forceinline__ float log_weight(int column) const {
    if (column >= size) return -__int_as_float(0x7F800000);
    return weights32 != nullptr ? weights32[column] : static_cast<float>(weights64[column]);
  }
  // Tokens of a list; the draft alone where it is certain.
  __device__ __forceinline__ int num_listed() const {
    return kind == kCertain ? 1 : kind == kOfList ? size : 0;
  }
  __device__ __forceinline__ int64_t listed(int column) const {
    return kind == kCertain ? draft : token_ids[column];
  }
  __device__ __forceinline__ double listed_weight(int column) const {
    return kind == kCertain ? 1.0 : weight(column);
  }
  __device__ __forceinline__ void words(int token, unsigned purpose, unsigned* four) const {
    di_philox(token / 4, purpose | place, position, seed, four);
  }
};

// What the target has more of.
__device__ __forceinline__ double di_rest(double target, double drafted) {
  return fmax(__dadd_rn(target, -drafted), 0.0);
}
// What is compared in the end.
__device__ __noinline__ double di_rest_score(double rest, unsigned word) {
  return __dadd_rn(log(rest), di_noise(word));
}

// Logarithms of four tokens' weights; of tokens behind the vocabulary anything.
template <typename Logit>
__device__ __forceinline__ void di_log_weights(const DiTest<Logit>& test, int token,
                                               float* weights) {
  const float* four = test.weights32 + token;
  if (test.weights32 != nullptr && (reinterpret_cast<size_t>(four) & 15) == 0 &&
      token + 4 <= test.size) {
    di_load_logits(four, weights);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = test.log_weight(token + i);
  }
}

// Screens a warp's run; adds what the target has more of to `sum`, roughly. Logarithms of drafts'
// weights are asked for a step before they are looked at.
template <bool kIsDense, typename Logit>
__device__ __forceinline__ void di_screen_rest(const DiTest<Logit>& test, const Logit* kept,
                                               int first, int run, DiBest* best, float* sum) {
  const int lane = threadIdx.x % 32;
  const double factor = di_factor(test.numbers[1]);
  float refused = -di_infinity(), next[4];
  if (kIsDense) di_log_weights(test, first + 4 * lane, next);
#pragma unroll 1
  for (int at = 4 * lane; at < run; at += kStep) {
    Logit x[4];
    float sizes[4], weights[4];
    di_load_logits(kept + at, x);
    if (kIsDense) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[i] = next[i];
      if (at + kStep < run) di_log_weights(test, first + at + kStep, next);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const double relative = (static_cast<double>(x[i]) - test.numbers[0]) * factor;
      sizes[i] = static_cast<float>(relative - test.log_total);
      // Where the draft's law has more, for sure, there is no rest.
      const bool is_less = kIsDense && sizes[i] < weights[i] - 1e-3f;
      if (is_less) sizes[i] = -di_infinity();
      const float rest = __expf(sizes[i]) - (kIsDense && !is_less ? __expf(weights[i]) : 0.0f);
      *sum += fmaxf(rest, 0.0f);
    }
    const float most = fmaxf(fmaxf(sizes[0], sizes[1]), fmaxf(sizes[2], sizes[3]));
    if (!__any_sync(0xFFFFFFFFu, most > -80.0f && most + kMostNoise >= refused)) continue;
    unsigned words[4], asked = 0;
    test.words(first + at, kRest, words);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (sizes[i] > -80.0f && sizes[i] + di_noise_bound(words[i]) >= refused) asked |= 1u << i;
    if (!__any_sync(0xFFFFFFFFu, asked != 0)) continue;
#pragma unroll 1
    for (; asked != 0; asked &= asked - 1) {
      const int i = __ffs(asked) - 1, token = first + at + i;
      float size = di_one_of(sizes, i);
      if (kIsDense)
        size = __logf(static_cast<float>(di_rest(
            test.probability(static_cast<double>(kept[at + i])), test.dense(token))));
      best->see(size + di_screen_noise(di_one_of(words, i)), token);
    }
    refused = fmaxf(refused, di_refused_in_warp(best->first));
  }
}

// Exact scores of a thread's tokens that may win, as in `di_decide`.
template <bool kIsDense, typename Logit>
__device__ __forceinline__ void di_decide_rest(const DiTest<Logit>& test, const Logit* kept,
                                               int first, int run, const DiBest& best, float near,
                                               double* score, int* token) {
  const bool is_asked = __any_sync(0xFFFFFFFFu, best.second >= near);
  const bool is_one = !is_asked && best.token >= 0 && best.first >= near;
  const int begin = is_asked ? 4 * (threadIdx.x % 32) : best.token - first;
  const int end = is_asked ? run : is_one ? begin + 1 : begin;
#pragma unroll 1
  for (int at = begin; at < end; at = is_asked && at % 4 == 3 ? at + kStep - 3 : at + 1) {
    const double target = test.probability(static_cast<double>(kept[at]));
    const double rest = kIsDense ? di_rest(target, test.dense(first + at)) : target;
    unsigned words[4];
    test.words(first + at, kRest, words);
    const unsigned word = di_one_of(words, first + at);
    if (__logf(static_cast<float>(rest)) + di_screen_noise(word) >= near - kNear)
      di_keep(score, token, di_rest_score(rest, word), first + at);
  }
}

// Visits the listed tokens of a block's part, with what the target has more of.
template <typename Logit, typename Visit>
__device__ __forceinline__ void di_each_listed(const DiTest<Logit>& test, int begin, int end,
                                               Visit visit) {
#pragma unroll 1
  for (int i = threadIdx.x; i < test.num_listed(); i += kThreads) {
    const int64_t listed = test.listed(i);
    if (listed < begin || listed >= end || !test.is_token(listed)) continue;
    const int token = static_cast<int>(listed);
    visit(token, di_rest(test.target(token), test.listed_weight(i)));
  }
}
template <typename Logit>
__device__ __forceinline__ float di_screened(const DiTest<Logit>& test, int token, double rest) {
  unsigned words[4];
  test.words(token, kRest, words);
  return __logf(static_cast<float>(rest)) + di_screen_noise(di_one_of(words, token));
}

// Sum over the row of what each thread has, in a fixed order; all blocks meet.
template <int kBlocks>
__device__ __forceinline__ double di_add_over_row(double value, int rank, double* of_warps,
                                                  double* of_blocks) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < kBlocks) {
    double sum = 0.0;
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
    di_send64(of_blocks + rank, threadIdx.x, __double_as_longlong(sum));
  }
  di_meet();
  double sum = 0.0;
  for (int block = 0; block < kBlocks; ++block) sum += of_blocks[block];
  return sum;
}

// A token of what the target has more of; -1 where that is no more than rounding. `part` holds the
// block's part of the row.
template <int kBlocks, bool kIsDense, typename Logit>
__device__ __forceinline__ int di_draw_rest(const DiTest<Logit>& test, Logit* part, int run,
                                            int rank, unsigned* word, double* of_warps,
                                            double* of_blocks) {
  const int begin = rank * kWarps * run, end = begin + kWarps * run, warp = threadIdx.x / 32 * run;
  const Logit* kept = part + warp;
  double* winners = of_blocks + 2 * kBlocks;
  __syncthreads();
  if (!kIsDense)
    for (int i = threadIdx.x; i < test.num_listed(); i += kThreads) {
      const int64_t at = test.listed(i) - begin;
      if (at >= 0 && at < kWarps * run) part[at] = static_cast<Logit>(-di_infinity());
    }
  __syncthreads();
  DiBest best, listed;
  float rough = 0.0f;
  double score = 0.0, sum = 0.0;
  int token = -1;
  di_screen_rest<kIsDense>(test, kept, begin + warp, run, &best, &rough);
  if (!kIsDense)
    di_each_listed(test, begin, end, [&](int seen, double rest) {
      sum += rest;
      listed.see(di_screened(test, seen, rest), seen);
    });
  const float near = di_near_in_block(fmaxf(best.first, listed.first), word);
  di_decide_rest<kIsDense>(test, kept, begin + warp, run, best, near, &score, &token);
  if (!kIsDense && listed.first >= near)
    di_each_listed(test, begin, end, [&](int seen, double rest) {
      unsigned words[4];
      test.words(seen, kRest, words);
      if (di_screened(test, seen, rest) >= near)
        di_keep(&score, &token, di_rest_score(rest, di_one_of(words, seen)), seen);
    });
  di_send_best<kBlocks>(score, token, rank, of_warps, winners);
  __syncthreads();
  sum = di_add_over_row<kBlocks>(sum + rough, rank, of_warps, of_blocks);
  if (sum < kRoughFloor) {
    sum = 0.0;
#pragma unroll 1
    for (int at = threadIdx.x % 32; at < run; at += 32) {
      const double target = test.probability(static_cast<double>(kept[at]));
      sum += kIsDense ? di_rest(target, test.dense(begin + warp + at)) : target;
    }
    if (!kIsDense) di_each_listed(test, begin, end, [&](int, double rest) { sum += rest; });
    sum = di_add_over_row<kBlocks>(sum, rank, of_warps, of_blocks + kBlocks);
    if (sum < kRestFloor) return -1;
  }
  return di_best_of<kBlocks>(winners);
}

// Whether the draft passes the test. All threads of the block must call.
template <typename Logit>
__device__ __forceinline__ bool di_passes(const DiTest<Logit>& test, double target,
                                          double* drafted) {
  if (!test.is_token(test.draft)) return false;
  const int draft = static_cast<int>(test.draft);
  __syncthreads();
  if (threadIdx.x == 0) *drafted = test.kind == kDense ? test.dense(draft) : 0.0;
  __syncthreads();
  for (int i = threadIdx.x; i < test.num_listed(); i += kThreads)
    if (test.listed(i) == draft) *drafted = test.listed_weight(i);
  __syncthreads();
  unsigned words[4];
  test.words(0, kAccept, words);
  const double uniform =
      static_cast<double>(static_cast<int64_t>(words[0]) << 21 | words[1] >> 11) * 0x1p-53;
  return __dmul_rn(uniform, *drafted) < target;
}

// Rows of drafts whose law is asked for: not the last of a request, good, with a temperature.
__device__ __forceinline__ bool di_is_tested(const int64_t* offsets, int request, int place,
                                             const unsigned char* status,
                                             const double* temperature) {
  const int64_t row = offsets[request] + place;
  return row + 1 < offsets[request + 1] && status[row] == 0 && temperature[row] > 0.0;
}

// A row's largest logit and the logarithm of its masses.
__device__ __forceinline__ void di_write_law(const double* law, int64_t total, double* laws) {
  if (threadIdx.x != 0) return;
  laws[0] = law[kLargest], laws[1] = log(__ll2double_rn(total) * 0x1p-44);
}

// Goes through a request's drafts and writes what becomes of them. `q_kind`, `q_places`, `q_size`
// tell the drafts' laws; `part`, `word`, `of_warps`, `of_blocks` and `drafted` are shared memory.
template <int kBlocks, typename Logit>
__device__ __forceinline__ void di_decide_request(
    const Logit* logits, int64_t row_stride, const unsigned* mask, bool has_mask, int words,
    const int64_t* token_ids, const unsigned char* status, const double* temperature,
    const int64_t* seed, const int64_t* position, const int64_t* drafts, const int64_t* offsets,
    const double* laws, const float* q32, const double* q64, const int64_t* q_token_ids,
    int q_kind, bool q_is_double, int q_places, int q_size, int request, int rank, int run,
    int vocab_size, int width, Logit* part, unsigned* word, double* of_warps, double* of_blocks,
    double* drafted, int64_t* emitted, int64_t* num_accepted, int64_t* num_emitted,
    unsigned char* code) {
  const int64_t first = offsets[request];
  const int num_drafts = static_cast<int>(offsets[request + 1] - first) - 1;
  int place = 0;
  int64_t drawn = -1;
  di_meet();
#pragma unroll 1
  for (; place < num_drafts && status[first + place] == 0; ++place) {
    const int64_t row = first + place;
    if (!(temperature[row] > 0.0)) {
      if (token_ids[row] == drafts[row]) continue;
      break;
    }
    const bool has_law = place < q_places;
    const int64_t column = (static_cast<int64_t>(request) * q_places + place) * q_size;
    const DiTest<Logit> test = {
        logits + row * row_stride,
        di_mask_of(mask, static_cast<int>(row), has_mask, words),
        {laws[row * 2], temperature[row]}, laws[row * 2 + 1], seed[row], position[row],
        drafts[row], q_is_double ? nullptr : q32 + column, q64 + column, q_token_ids + column,
        q_kind == kCertain || has_law ? q_kind : kDense,
        q_kind == kCertain || has_law ? q_size : 0, vocab_size, place};
    const double target =
        test.is_token(test.draft) ? test.target(static_cast<int>(test.draft)) : 0.0;
    if (di_passes(test, target, drafted)) continue;
    int64_t extremes[3];
    di_keep_run(test.row, test.mask, (rank * kWarps + threadIdx.x / 32) * run, run, vocab_size,
                part + threadIdx.x / 32 * run, extremes);
    const int token =
        test.kind == kDense
            ? di_draw_rest<kBlocks, true>(test, part, run, rank, word, of_warps, of_blocks)
            : di_draw_rest<kBlocks, false>(test, part, run, rank, word, of_warps, of_blocks);
    if (token < 0 && target > 0.0) continue;
    drawn = token;
    break;
  }
  if (rank == 0) {
    const int64_t own = drawn >= 0 ? drawn : token_ids[first + place];
    const int ended = status[first + place], size = place + (ended == 0);
    for (int i = threadIdx.x; i < width; i += kThreads)
      emitted[i] = i >= size ? -1 : i == place ? own : drafts[first + i];
    if (threadIdx.x == 0)
      *num_accepted = place, *num_emitted = size, *code = static_cast<unsigned char>(ended);
  }
  // No block leaves while others send to it.
  di_meet();
}
"""
