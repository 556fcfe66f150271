// Numbers as the kernels see them: float, or its upper half ("Half", bfloat16), and as many side by side as a vector
// unit takes. Images have their channels last: rows of so many channels, one for each pixel.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

using Half = std::uint16_t;
using Count = std::int64_t;

inline float up(float x) { return x; }

inline float up(Half x) {
    std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T> T down(float value);

template <> inline float down<float>(float value) { return value; }

// The nearest Half; of two equally near ones the even one.
template <> inline Half down<Half>(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : static_cast<Half>(rounded);
}

inline Count least(Count a, Count b) { return a < b ? a : b; }

// As many numbers side by side as a vector unit takes at most.
constexpr Count LANES = 16;
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

inline Lanes taken(const float *x) {
    Lanes value;
    std::memcpy(&value, x, sizeof value);
    return value;
}

// The first so many of them; the others are 0.
inline Lanes taken(const float *x, Count lanes) {
    if (lanes == LANES) return taken(x);
    float value[LANES] = {};
    for (Count lane = 0; lane < lanes; lane++) value[lane] = x[lane];
    return taken(value);
}

inline void put(Lanes value, float *x, Count lanes = LANES) { std::memcpy(x, &value, lanes * sizeof(float)); }

}  // namespace
