"""CUDA helpers of the index scores: keys of 68 bytes to the tensor core's fragment.

A thread holds group t (32 channels, 16 bytes, one scale) of two keys, where the tensor core expects
channels 2t, 2t + 1, 2t + 8, 2t + 9 of every 16. Queries lie in shared memory in the same order, so
the sum over channels is the same and no code changes threads.
"""

INDEX_KEYS = r"""
__constant__ unsigned di_key_shift[5] = {64u, 4096u, 4u, 256u, 16u};

// Group `group` of two keys as bfloat16 times 2^-16, which leaves room for scales up to 2^17. Bits
// of a code where bfloat16 has its sign and its lowest exponent and highest mantissa bits read as
// the value times 2^-126, so one multiplication gives both factors. Left shifts are products with
// constants that the compiler does not see: they run beside the masks.
template <typename Value>
__device__ __forceinline__ void di_unpack_index_keys(const unsigned* codes, const unsigned* scales,
                                                     int group, Value* values) {
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    const unsigned exponent = ((scales[key] >> (8 * group)) & 0xFFu) + 110u;
    const unsigned scale = exponent * 0x00800080u;
#pragma unroll
    for (int index = 0; index < 4; ++index) {
      const unsigned word = codes[4 * key + index];
      unsigned* pairs = out + 8 * index + key;
      pairs[0] = di_multiply_pair(((word * di_key_shift[0]) & 0x01C001C0u) |
                                  ((word * di_key_shift[1]) & 0x80008000u), scale);
      pairs[2] = di_multiply_pair(((word * di_key_shift[2]) & 0x01C001C0u) |
                                  ((word * di_key_shift[3]) & 0x80008000u), scale);
      pairs[4] = di_multiply_pair(((word >> 2) & 0x01C001C0u) |
                                  ((word * di_key_shift[4]) & 0x80008000u), scale);
      pairs[6] = di_multiply_pair(((word >> 6) & 0x01C001C0u) | (word & 0x80008000u), scale);
    }
  }
}

// Eight channels of each of four groups to the order of the keys: value 8p + 2g + e is channel
// p + 4e of group g.
template <typename Value>
__device__ __forceinline__ void di_order_channels(const Value* in, Value* out) {
#pragma unroll
  for (int place = 0; place < 32; ++place)
    out[place] = in[place % 8 / 2 * 8 + place / 8 + place % 2 * 4];
}

// A weight of one (bfloat16) or two (float32) words of 16 bits.
__device__ __forceinline__ float di_weight(const unsigned short* words, int words_each) {
  if (words_each == 1) return __uint_as_float(static_cast<unsigned>(words[0]) << 16);
  return __uint_as_float(words[0] | static_cast<unsigned>(words[1]) << 16);
}

// Scores of keys g and g + 8 of the warp from a thread's products with heads 2t, 2t + 1, 2t + 8 and
// so on; `weights` starts at head 2t. Additions are fused and ordered by hand, so that every kernel
// gives a key the same bits; NaN stays NaN.
__device__ __forceinline__ void di_weigh_heads(const float* products, const float* weights,
                                               float* scores) {
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    float sum = 0.0f;
#pragma unroll
    for (int head = 0; head < 8; ++head) {
      float product = products[head / 2 * 4 + key * 2 + head % 2];
      asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(product));
      sum = __fmaf_rn(product, weights[head / 2 * 8 + head % 2], sum);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 1));
    scores[key] = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, 2));
  }
}
"""
