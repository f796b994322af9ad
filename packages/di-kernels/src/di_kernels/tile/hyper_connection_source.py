"""The Sinkhorn iteration of one 4 x 4 matrix as CUDA, by one thread in registers.

The entries stay k[i][j] / (u[i] * v[j]): a row step sets u[i] = sum over j of k[i][j] / v[j] +
eps * u[i], a column step v[j] likewise, which are the divisions of the reference without writing 16
entries each time. A step is four independent chains of five additions and one reciprocal; shuffles
between threads would take longer.
"""

SINKHORN = r"""
__device__ __forceinline__ float di_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ void di_sinkhorn(const float* logits, float* mix, int iterations,
                                            float eps) {
  float k[4][4], u[4], v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* row = logits + 4 * i;
    const float peak = fmaxf(fmaxf(row[0], row[1]), fmaxf(row[2], row[3]));
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) total += k[i][j] = expf(row[j] - peak);
#pragma unroll
    for (int j = 0; j < 4; ++j) k[i][j] = k[i][j] / total + eps;
    u[i] = 1.0f;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = (k[0][j] + k[1][j]) + (k[2][j] + k[3][j]) + eps;
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
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) mix[4 * i + j] = k[i][j] / u[i] / v[j];
}
"""
