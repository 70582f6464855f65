// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_TESTS_HALF_BITS_H
#define TILEWIRE_TESTS_HALF_BITS_H
// IEEE half to float and back (round to nearest even), written apart from the library as a check on it.
// Finite values only.
#include <cmath>
#include <cstdint>

namespace test
{

inline float HalfToFloat(std::uint16_t bits)
{
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

inline std::uint16_t FloatToHalf(float value)
{
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude == 0.0f) {
        return sign;
    }
    int exponent = 0;
    std::frexp(magnitude, &exponent); // magnitude in [2^(exponent-1), 2^exponent)
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
    // steps is 1024..2048 for normal numbers; 2048 carries into the exponent by itself
    return static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(unit + 24) * 1024 + steps));
}

} // namespace test

#endif
