"""CUDA helpers of hyper-connections: the Sinkhorn iteration by one warp without memory, a store.

The entries stay k[i][j] / (u[i] * v[j]): a row step sets u[i] = sum over j of k[i][j] / v[j] +
eps * u[i], a column step v[j] likewise, which are the divisions of the reference without writing 16
entries each time. 1 / v[j] is the product of the three others over the product of all four, which
lies far from float32's ends for any matrix of a softmax plus eps: so a step needs one reciprocal,
and its sums are there when that is. All lanes run all steps: exchanging parts between lanes would
take longer than computing them.
"""

SINKHORN = r"""
__device__ __forceinline__ float di_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float di_pick(const float* values, int index) {
  const float low = index & 1 ? values[1] : values[0], high = index & 1 ? values[3] : values[2];
  return index & 2 ? high : low;
}

// One half of an iteration: new factors of one side from those of the other.
template <bool kIsColumnStep>
__device__ __forceinline__ void di_sinkhorn_step(const float (&k)[4][4], const float* from,
                                                 float* to, float eps) {
  const float first = from[0] * from[1], last = from[2] * from[3];
  const float reciprocal = di_reciprocal(first * last);
  const float others[4] = {from[1] * last, from[0] * last, from[3] * first, from[2] * first};
  float sums[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float entry = kIsColumnStep ? k[j][i] : k[i][j];
      sums[i] = j == 0 ? entry * others[0] : fmaf(entry, others[j], sums[i]);
    }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = fmaf(sums[i], reciprocal, eps * to[i]);
}

// Lanes 8 .. 23 hold the logits row by row and get their entries; the other lanes help.
__device__ __forceinline__ float di_sinkhorn(float logit, int lane, int iterations, float eps) {
  constexpr unsigned all = 0xFFFFFFFFu;
  float peak = fmaxf(logit, __shfl_xor_sync(all, logit, 1));
  peak = fmaxf(peak, __shfl_xor_sync(all, peak, 2));
  const float power = __expf(logit - peak);
  float total = power + __shfl_xor_sync(all, power, 1);
  total += __shfl_xor_sync(all, total, 2);
  const float own = fmaf(power, di_reciprocal(total), eps);
  float k[4][4], u[4], v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) k[i][j] = __shfl_sync(all, own, 8 + 4 * i + j);
    u[i] = 1.0f;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = (k[0][j] + k[1][j]) + (k[2][j] + k[3][j]) + eps;
#pragma unroll 1
  for (int step = 1; step < iterations; ++step) {
    di_sinkhorn_step<false>(k, v, u, eps);
    di_sinkhorn_step<true>(k, u, v, eps);
  }
  return own * di_reciprocal(di_pick(u, (lane - 8) / 4) * di_pick(v, lane % 4));
}
"""

STORE = r"""
// Four or eight bfloat16 numbers in one store, which the compiler takes apart here.
template <int kValues, typename Value>
__device__ __forceinline__ void di_store(Value* to, const Value* values) {
  const unsigned* words = reinterpret_cast<const unsigned*>(values);
  if constexpr (kValues == 8)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  else
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(words[0]), "r"(words[1])
                 : "memory");
}
"""
