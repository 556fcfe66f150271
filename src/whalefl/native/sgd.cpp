// Steps of SGD: gradients are gone through once for their length, and once more with the weights.

#include "numbers.h"

namespace {

constexpr Count BLOCK = 8192;  // numbers that stay in a near cache

// The sum of all squares.
template <typename T> double squares(const T *__restrict x, Count size) {
    constexpr Count SUMS = 64;
    double total = 0;
    for (Count start = 0; start < size; start += BLOCK) {
        const Count end = least(start + BLOCK, size), whole = start + (end - start) / SUMS * SUMS;
        float sums[SUMS] = {};
        for (Count i = start; i < whole; i += SUMS)
            for (Count place = 0; place < SUMS; place++) sums[place] += up(x[i + place]) * up(x[i + place]);
        for (Count i = whole; i < end; i++) sums[i - whole] += up(x[i]) * up(x[i]);
        for (float sum : sums) total += sum;
    }
    return total;
}

}  // namespace

// A weight of some copies, one after another, each of so many numbers: its momentum and gradient lie as it does. `half`
// is a copy of it in 16 bits, and where there is one the gradient is in 16 bits too; else it is null.
struct Weight {
    float *weight, *momentum;
    const void *gradient;
    Half *half;
    Count size;
};

// How far a step of SGD goes.
struct Step {
    float rate, momentum, decay, clip;  // clip is 0 where nothing is clipped
};

namespace {

template <typename T> double length(const Weight &of, Count copy) {
    return squares(static_cast<const T *>(of.gradient) + copy * of.size, of.size);
}

template <typename T> void step(const Weight &of, Count copy, float scale, Step by) {
    const Count start = copy * of.size;
    const T *__restrict gradient = static_cast<const T *>(of.gradient) + start;
    float *__restrict weight = of.weight + start, *__restrict momentum = of.momentum + start;
    Half *__restrict half = of.half == nullptr ? nullptr : of.half + start;
    for (Count begin = 0; begin < of.size; begin += BLOCK) {
        const Count end = least(begin + BLOCK, of.size);
#pragma omp simd
        for (Count i = begin; i < end; i++) {
            float slope = up(gradient[i]) * scale + by.decay * weight[i];
            momentum[i] = by.momentum * momentum[i] + slope;
            weight[i] -= by.rate * momentum[i];
        }
        if (half != nullptr)
            for (Count i = begin; i < end; i++) half[i] = down<Half>(weight[i]);
    }
}

}  // namespace

extern "C" {

// A step of SGD for each of some copies: its gradient is divided by what makes it too long, if it is.
void sgd(const Weight *weights, Count count, Count copies, Step by) {
    for (Count copy = 0; copy < copies; copy++) {
        float scale = 1;
        if (by.clip > 0) {
            double total = 0;
            for (Count w = 0; w < count; w++)
                total += weights[w].half == nullptr ? length<float>(weights[w], copy) : length<Half>(weights[w], copy);
            float excess = (static_cast<float>(std::sqrt(total)) + 1e-6f) / by.clip;
            scale = excess <= 1 ? 1 : 1 / excess;  // what is no number stays none
        }
        for (Count w = 0; w < count; w++)
            if (weights[w].half == nullptr) step<float>(weights[w], copy, scale, by);
            else step<Half>(weights[w], copy, scale, by);
    }
}

}  // extern "C"
