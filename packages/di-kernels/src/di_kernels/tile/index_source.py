"""CUDA helpers of the index scores: keys of 68 bytes to the tensor core's fragment.

A thread holds group t (32 channels, 16 bytes, one scale) of two keys, where the tensor core expects
channels 2t, 2t + 1, 2t + 8, 2t + 9 of every 16. Queries lie in shared memory in the same order, so
the sum over channels is the same and no code changes threads.
"""

INDEX_KEYS = r"""
// Keeps a number in a register: it is not computed again where it is used.
__device__ __forceinline__ int di_keep(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// A number that all lanes have: its branches are seen to be those of the whole warp.
__device__ __forceinline__ int di_same(int number) {
  return __shfl_sync(0xFFFFFFFFu, number, 0);
}

// An address as a number, kept like `di_keep` does.
template <typename Value>
__device__ __forceinline__ long long di_address(const Value* place) {
  long long address = reinterpret_cast<long long>(place);
  asm volatile("" : "+l"(address));
  return address;
}

// A thread's group of a key: addresses of the codes and scales of its run are at `starts`.
template <typename Start>
__device__ __forceinline__ void di_load_index_key(const Start* starts, unsigned code_bytes,
                                                  unsigned scale_bytes, unsigned* codes,
                                                  unsigned* scale) {
  const longlong2 start = *reinterpret_cast<const longlong2*>(starts);
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
               : "l"(start.x + code_bytes));
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(*scale) : "l"(start.y + scale_bytes));
}

// A group of two keys as bfloat16 times 2^-16, which leaves room for scales up to 2^17. Bits of a
// code where bfloat16 has its sign and its lowest exponent and highest mantissa bits read as the
// value times 2^-126, so one multiplication gives both factors. Another shifts sign and magnitude
// of two codes by different distances.
template <typename Value>
__device__ __forceinline__ void di_unpack_index_keys(const unsigned* codes, const unsigned* scales,
                                                     Value* values) {
  unsigned* out = reinterpret_cast<unsigned*>(values);
#pragma unroll
  for (int key = 0; key < 2; ++key) {
    const unsigned scale = (scales[key] + 110u) * 0x00800080u;
#pragma unroll
    for (int index = 0; index < 4; ++index) {
      const unsigned word = codes[4 * key + index], upper = word >> 6;
      unsigned* pairs = out + 8 * index + key;
      pairs[0] = di_multiply_pair(((word & 0x000F000Fu) * 0x1040u) & 0x81C081C0u, scale);
      pairs[2] = di_multiply_pair(((word & 0x00F000F0u) * 0x0104u) & 0x81C081C0u, scale);
      pairs[4] = di_multiply_pair(((upper & 0x003C003Cu) * 0x0410u) & 0x81C081C0u, scale);
      pairs[6] = di_multiply_pair((upper & 0x01C001C0u) | (word & 0x80008000u), scale);
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

// Keeps a product, zero where it is negative; NaN stays NaN.
__device__ __forceinline__ void di_put_positive(float* products, int index, float product) {
  asm volatile("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(products[index]) : "f"(product));
}

// Score of key g (even t) or g + 8 (odd t) of the warp, of the first (t < 2) or last of kRows rows,
// from a thread's products with heads 2t, 2t + 1, 2t + 8 and so on of every row, none negative;
// `weights` are those of its heads. Additions are fused and ordered by hand, so that every kernel
// gives a key the same bits.
template <int kRows>
__device__ __forceinline__ float di_weigh_heads(const float* products, const float* weights) {
  const int lane = threadIdx.x;
  float sums[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float keys[2] = {0.0f, 0.0f}, own[8];
    *reinterpret_cast<float4*>(own) = *reinterpret_cast<const float4*>(weights + 32 * row);
    *reinterpret_cast<float4*>(own + 4) = *reinterpret_cast<const float4*>(weights + 32 * row + 4);
#pragma unroll
    for (int head = 0; head < 8; ++head) {
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const float product = products[16 * row + head / 2 * 4 + key * 2 + head % 2];
        keys[key] = __fmaf_rn(product, own[head], keys[key]);
      }
    }
    const float sent = lane & 1 ? keys[0] : keys[1];
    sums[row] = __fadd_rn(lane & 1 ? keys[1] : keys[0], __shfl_xor_sync(0xFFFFFFFFu, sent, 1));
  }
  const float sent = lane & 2 ? sums[0] : sums[kRows - 1];
  return __fadd_rn(lane & 2 ? sums[kRows - 1] : sums[0], __shfl_xor_sync(0xFFFFFFFFu, sent, 2));
}

// Minus infinity where the entry is not visible; `address` is that of place 0 of row 0.
__device__ __forceinline__ void di_store_score(long long address, int place, int row, int stride,
                                               float score, bool is_visible) {
  address += 4 * (static_cast<long long>(row) * stride + place);
  asm volatile("st.global.f32 [%0], %1;"
               :: "l"(address), "f"(is_visible ? score : __uint_as_float(0xFF800000u)) : "memory");
}
"""
