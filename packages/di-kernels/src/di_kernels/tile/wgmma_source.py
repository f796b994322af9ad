"""CUDA of wgmma for tokens in an odd multiple of 8, which TileLang cuts into products of 8."""


def own_wgmma(tokens: int, dtype: str) -> str:
    """Adds 128 bytes of columns of 64 weight rows; weights and sums in fragment order.

    Args:
        tokens: Rows of x.
        dtype: `bfloat16` or `float8_e4m3fn`.
    """
    count = tokens // 2
    sums = ", ".join(f"%{place}" for place in range(count))
    outputs = ", ".join(f'"+f"(total[{place}])' for place in range(count))
    shape, ending = (
        ("k16.f32.bf16.bf16", ", 0") if dtype == "bfloat16" else ("k32.f32.e4m3.e4m3", "")
    )
    return f"""
template <typename Row, typename Value>
__device__ __forceinline__ void di_own_wgmma(const Row* x, const Value* weights, float* total) {{
  const unsigned* a = reinterpret_cast<const unsigned*>(weights);
  const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(x));
  // Rows of 128 bytes, eight of them 1,024 apart from the next, 128-byte swizzle.
  const unsigned long long first = (1ull << 62) | (64ull << 32) | (1ull << 16) |
                                   ((place & 0x3FFFF) >> 4);
#pragma unroll
  for (int index = 0; index < {count}; ++index) asm volatile("" : "+f"(total[index]) :: "memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int step = 0; step < 4; ++step) {{
    asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; "
                 "wgmma.mma_async.sync.aligned.m64n{tokens}{shape} {{{sums}}}, "
                 "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, "
                 "p, 1, 1{ending};}}"
                 : {outputs}
                 : "r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]),
                   "r"(a[4 * step + 3]), "l"(first + 2 * step) : "memory");
  }}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int index = 0; index < {count}; ++index) asm volatile("" : "+f"(total[index]) :: "memory");
}}
"""
