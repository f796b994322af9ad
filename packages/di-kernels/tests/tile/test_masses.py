"""The short way to a mass, step by step in exact arithmetic, against exp itself."""

import decimal
import re
from decimal import Decimal
from fractions import Fraction

import pytest

from di_kernels.tile.mass_source import MASS

_NUMBER = r"0x[0-9a-f.]+p[+-]?\d+"
SERIES = [
    float.fromhex(number)
    for line in re.findall(r"series = __fma_rn\((.*)\);", MASS)
    for number in re.findall(_NUMBER, line)
]
POWERS = [float.fromhex(n) for n in re.search(r"kPowers\[32\] = {(.*)}", MASS)[1].split(", ")]
FACTOR = float.fromhex(re.search(rf"law\[kFactor\] = ({_NUMBER})", MASS)[1])
MAGIC = 1.5 * 2.0**52


def fma(a, b, c):
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def short_mass(behind, temperature):
    """Value before it is rounded to an integer, in units of 2^-44."""
    factor = FACTOR / temperature
    shifted = fma(behind, factor, MAGIC)
    steps = int(shifted - MAGIC)
    rest = fma(behind, factor, -(shifted - MAGIC))
    power = POWERS[steps % 32] * 2.0 ** (44 + steps // 32)
    series = SERIES[0]
    for coefficient in SERIES[1:]:
        series = fma(series, rest, coefficient)
    return fma(power, series * rest, power)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3, 1e-6, 100.0])
def test_errors_stay_below_what_the_rounding_allows(temperature):
    assert len(SERIES) == 5
    assert len(POWERS) == 32
    each = 2.0**-55 if temperature == 1.0 else 1.25 * 2.0**-52
    with decimal.localcontext(prec=60):
        for number in range(2000):
            behind = -31.6 * temperature * (number / 1999) ** 2
            relative = behind / temperature
            exact = Decimal(relative).exp() * 2**44
            error = abs(Decimal(short_mass(behind, temperature)) - exact) / exact
            # The device's exp has an error of its own, one unit in the last place.
            assert float(error) + 2.0**-52 < 2.0**-50 + abs(relative) * each, relative
