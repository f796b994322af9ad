"""CUDA helpers of hyper-connections: the Sinkhorn iteration by one warp without memory, a store.

The entries stay k[i][j] / (u[i] * v[j]): a row step sets u[i] = sum over j of k[i][j] / v[j] +
eps * u[i], a column step v[j] likewise, which are the divisions of the reference without writing 16
entries each time. All lanes run all steps, four independent chains of five additions and one
reciprocal each: exchanging parts between lanes would take longer than computing them.
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

// Lanes 8 .. 23 hold the logits row by row and get their entries; the other lanes help.
__device__ __forceinline__ float di_sinkhorn(float logit, int lane, int iterations, float eps) {
  constexpr unsigned all = 0xFFFFFFFFu;
  float peak = fmaxf(logit, __shfl_xor_sync(all, logit, 1));
  peak = fmaxf(peak, __shfl_xor_sync(all, peak, 2));
  const float power = expf(logit - peak);
  float total = power + __shfl_xor_sync(all, power, 1);
  total += __shfl_xor_sync(all, total, 2);
  const float own = power / total + eps;
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
    float inverse[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) inverse[j] = di_reciprocal(v[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      u[i] = fmaf(k[i][1], inverse[1], k[i][0] * inverse[0]) +
             fmaf(k[i][3], inverse[3], fmaf(k[i][2], inverse[2], eps * u[i]));
#pragma unroll
    for (int i = 0; i < 4; ++i) inverse[i] = di_reciprocal(u[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      v[j] = fmaf(k[1][j], inverse[1], k[0][j] * inverse[0]) +
             fmaf(k[3][j], inverse[3], fmaf(k[2][j], inverse[2], eps * v[j]));
  }
  return own / di_pick(u, (lane - 8) / 4) / di_pick(v, lane % 4);
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
