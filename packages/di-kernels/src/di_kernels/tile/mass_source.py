"""CUDA of the masses of tokens: exp of a relative logit in units of 2^-44, rounded to an integer.

`di_mass` is the definition: float64 division, the device's exp, one rounding. A pass over a row
computes most masses by less: one product for temperature and base, a table of 32 powers of two that
a warp's lanes hold, a polynomial of degree five. The result, once a little larger and once a little
smaller than it may be, is rounded to an integer by a magic number; where both do not give the same
integer, `di_mass` is asked. So the integer is always its.

Relative errors, in units of 2^-53: 1 the last step, 1 the table, 0.8 the polynomial, 2 the device's
exp (1 ulp: CUDA C++ programming guide), and, times the relative logit, 0.13 for the factor's
constant or, where a temperature divides, 1 for the division of each way and 0.13.
"""

_POWERS = ", ".join(float(2 ** (lane / 32)).hex() for lane in range(32))

MASS = (
    r"""
// A row's law: largest allowed logit, temperature, least relative logit, bins per logit, top_k and
// top_p; of the short way to a mass 32 / ln 2 / temperature, what stretches and shrinks a result by
// its error, and the logit that stands for all below it, whose mass is 0; NaN where it is none.
enum { kLargest, kTemperature, kFloor, kScale, kTopK, kTopP, kFactor, kStretch, kShrink, kLeast };
constexpr double kMagic = 0x1.8p52;
__device__ const double kPowers[32] = {"""
    + _POWERS
    + r"""};

__device__ __forceinline__ double di_infinity() {
  return __longlong_as_double(0x7FF0000000000000LL);
}
__device__ __forceinline__ double di_relative(double logit, const double* law) {
  return __ddiv_rn(__dadd_rn(logit, -law[kLargest]), law[kTemperature]);
}
// Below -31.5 a mass rounds to 0.
__device__ __noinline__ int64_t di_mass(double relative) {
  return relative < -31.5 ? 0 : __double2ll_rn(exp(relative) * 0x1p44);
}

__device__ __forceinline__ double di_round_down(double x, float) { return __double2float_rd(x); }
__device__ __forceinline__ double di_round_down(double x, double) { return x; }

// The short way's part of a law. Where logits are so large, or temperatures so small or large, that
// the one that stands for the lowest is far off, every mass is left to `di_mass`.
template <typename Logit>
__device__ __forceinline__ void di_set_mass_law(double temperature, double range, double* law) {
  const double least = di_round_down(law[kLargest] - 33.0 * temperature, Logit());
  const double each = temperature == 1.0 ? 0x1p-55 : 0x1.4p-52;
  const double error = 0x1p-50 + fmin(range / temperature, 33.0) * each;
  const bool has_short_way = temperature >= 0x1p-40 && temperature <= 0x1p40 &&
                             law[kLargest] - least <= 64.0 * temperature;
  law[kTemperature] = temperature;
  law[kFactor] = 0x1.71547652b82fep+5 / temperature;
  law[kStretch] = __dadd_ru(1.0, error), law[kShrink] = __dadd_rd(1.0, -error);
  law[kLeast] = has_short_way ? least : di_infinity() - di_infinity();
}
__device__ __forceinline__ bool di_has_short_way(const double* law) {
  return law[kLeast] == law[kLeast];
}

// The short way. A lane holds the power of two of its number, whose exponent is less by what the
// number adds to `steps`.
struct DiMasses {
  double largest, factor, stretch, shrink;
  int high, low;
  __device__ __forceinline__ explicit DiMasses(const double* law) {
    const int lane = threadIdx.x % 32;
    largest = law[kLargest], factor = law[kFactor];
    stretch = law[kStretch], shrink = law[kShrink];
    const double power = kPowers[lane] * 0x1p44;
    high = __double2hiint(power) - lane * 32768, low = __double2loint(power);
  }
  // The integer above `kMagic`, as the bits of two numbers that are one if it is sure. All lanes of
  // a warp must call.
  __device__ __forceinline__ void of(double logit, double* most, double* least) const {
    const double behind = __dadd_rn(logit, -largest);
    const double shifted = __fma_rn(behind, factor, kMagic);
    const int steps = __double2loint(shifted);
    const double rest = __fma_rn(behind, factor, -__dadd_rn(shifted, -kMagic));
    const double power =
        __hiloint2double(__shfl_sync(0xFFFFFFFFu, high, steps) + steps * 32768,
                         __shfl_sync(0xFFFFFFFFu, low, steps));
    double series = __fma_rn(0x1.5d8879cdcaa9ep-35, rest, 0x1.3b2b276d18b47p-27);
    series = __fma_rn(series, rest, 0x1.c6b08d7027c69p-20);
    series = __fma_rn(series, rest, 0x1.ebfbdff8098e6p-13);
    series = __fma_rn(series, rest, 0x1.62e42fefa39efp-6);
    const double value = __fma_rn(power, __dmul_rn(series, rest), power);
    *most = __fma_rn(value, stretch, kMagic);
    *least = __fma_rn(value, shrink, kMagic);
  }
};

// A sum of bits of `DiMasses`, in which every number still has that of `kMagic`.
struct DiMassSum {
  unsigned low = 0, high = 0;
  // Adds `most` if it is sure and wanted.
  __device__ __forceinline__ void add(double most, double least, bool is_wanted = true) {
    asm("{\n .reg .pred p, q;\n setp.ne.u32 q, %5, 0;\n setp.eq.and.u32 p, %2, %4, q;\n"
        " @p add.cc.u32 %0, %0, %2;\n @p addc.u32 %1, %1, %3;\n}"
        : "+r"(low), "+r"(high)
        : "r"(__double2loint(most)), "r"(__double2hiint(most)), "r"(__double2loint(least)),
          "r"(static_cast<unsigned>(is_wanted)));
  }
  // The sum of so many masses.
  __device__ __forceinline__ int64_t of(int count) const {
    return (static_cast<int64_t>(high) << 32 | low) - count * __double_as_longlong(kMagic);
  }
};
"""
)
