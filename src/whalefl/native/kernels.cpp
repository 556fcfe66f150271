// What training on a processor does between its matrix products, each in as few passes over memory as it needs.
//
// Images have their channels last: rows of so many channels, one for each pixel, over which the inner loops run side by
// side. Numbers are float, or its upper half ("Half", bfloat16); what there is one of for each channel is float, and
// sums over many numbers are taken in float a few rows at a time and go on in double.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

using Half = std::uint16_t;
using Count = std::int64_t;

constexpr Count FLUSH = 128;   // rows whose sums are taken in float
constexpr Count BLOCK = 8192;  // numbers that stay in the nearest cache
constexpr int MOST = 16;       // pixels in a window of a pool

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

}  // namespace

// Of images and of the windows of a pool, which leaves out what is over at the right and the lower edge.
struct Sizes {
    Count images, height, width, channels, pool_height, pool_width;

    Count pixels() const { return images * height * width; }
    int window() const { return static_cast<int>(pool_height * pool_width); }
};

namespace {

// What the forward pass finds of every channel, and the way back needs.
struct Found {
    float *mean, *inverse, *scale, *shift;  // inverse is 1 / deviation; the norm is scale * x + shift

    Found(float *room, Count channels)
        : mean(room), inverse(room + channels), scale(room + 2 * channels), shift(room + 3 * channels) {}
};

// Mean and variance of every channel: the first doubles of `room`, which has two and two floats of each.
template <typename T> void moments(const T *__restrict x, const Sizes &of, double *__restrict room) {
    const Count n = of.channels, pixels = of.pixels();
    double *__restrict mean = room, *__restrict variance = room + n;
    float *__restrict sum = reinterpret_cast<float *>(room + 2 * n), *__restrict squares = sum + n;
    std::memset(room, 0, 2 * n * sizeof *room);
    for (Count start = 0; start < pixels; start += FLUSH) {
        std::memset(sum, 0, 2 * n * sizeof *sum);
        for (Count p = start; p < least(start + FLUSH, pixels); p++) {
            const T *__restrict row = x + p * n;
#pragma omp simd
            for (Count c = 0; c < n; c++) {
                float off = up(row[c]) - up(x[c]);  // from a value near the mean, so that squares keep their digits
                sum[c] += off;
                squares[c] += off * off;
            }
        }
        for (Count c = 0; c < n; c++) {
            mean[c] += sum[c];
            variance[c] += squares[c];
        }
    }
    for (Count c = 0; c < n; c++) {
        double off = mean[c] / pixels, rest = variance[c] / pixels - off * off;
        mean[c] = up(x[c]) + off;
        variance[c] = rest < 0 ? 0 : rest;
    }
}

// One window: `top` (if it is wanted) is what is largest in it after the norm, `out` is relu(scale * top + shift).
template <typename T>
inline __attribute__((always_inline)) void normed(const T *const *x, int count, Count channels, Found found,
                                                  T *__restrict top, T *__restrict out) {
#pragma omp simd
    for (Count c = 0; c < channels; c++) {
        float sign = found.scale[c] < 0 ? -1.0f : 1.0f, most = sign * up(x[0][c]);
        for (int k = 1; k < count; k++) {
            float other = sign * up(x[k][c]);
            most = other > most ? other : most;
        }
        float value = found.scale[c] * (sign * most) + found.shift[c];
        if (top != nullptr) top[c] = down<T>(sign * most);
        out[c] = down<T>(value < 0 ? 0 : value);  // NaN stays NaN
    }
}

template <typename T> void pooled(const T *x, const Sizes &of, Found found, T *top, T *out) {
    const T *there[MOST];
    const int count = of.window();
    for (Count image = 0; image < of.images; image++)
        for (Count i = 0; i + of.pool_height <= of.height; i += of.pool_height)
            for (Count j = 0; j + of.pool_width <= of.width; j += of.pool_width) {
                for (int k = 0; k < count; k++) {
                    Count row = i + k / of.pool_width, column = j + k % of.pool_width;
                    there[k] = x + ((image * of.height + row) * of.width + column) * of.channels;
                }
                if (count == 4) normed(there, 4, of.channels, found, top, out);
                else if (count == 1) normed(there, 1, of.channels, found, top, out);
                else normed(there, count, of.channels, found, top, out);
                out += of.channels;
                if (top != nullptr) top += of.channels;
            }
}

template <typename T>
void forward(const T *x, const Sizes &of, const float *weight, const float *bias, double eps, double *room,
             float *found_room, T *top, T *out) {
    const Found found(found_room, of.channels);
    moments(x, of, room);
    for (Count c = 0; c < of.channels; c++) {
        double mean = room[c], inverse = 1 / std::sqrt(room[of.channels + c] + eps);
        found.mean[c] = static_cast<float>(mean);
        found.inverse[c] = static_cast<float>(inverse);
        found.scale[c] = static_cast<float>(weight[c] * inverse);
        found.shift[c] = static_cast<float>(bias[c] - mean * weight[c] * inverse);
    }
    pooled(x, of, found, top, out);
}

// The gradient of every pixel of a window: `line`, a constant and a factor of each channel, and for the first of those
// that are largest the slope of the window.
template <typename T>
inline __attribute__((always_inline)) void spread(const T *const *x, int count, Count channels, Found found,
                                                  const float *__restrict line, const T *__restrict top,
                                                  const T *__restrict slope, T *const *of_x) {
#pragma omp simd
    for (Count c = 0; c < channels; c++) {
        float most = up(count == 1 ? x[0][c] : top[c]);
        float own = found.scale[c] * most + found.shift[c] > 0 ? found.scale[c] * up(slope[c]) : 0.0f;
        for (int k = 0; k < count; k++) {
            float value = up(x[k][c]);
            bool first = count == 1 || value == most;
            of_x[k][c] = down<T>(line[c] + line[channels + c] * value + (first ? own : 0.0f));
            own = first ? 0.0f : own;
        }
    }
}

// of_bias = sum s and of_weight = sum s x', over the windows that are above 0: s is their slope, x' = (x - mean) /
// deviation of what is largest in them.
template <typename T>
void reduce(const T *__restrict most, const T *__restrict slope, Count windows, Count n, Found found,
            float *__restrict some, float *__restrict of_weight, float *__restrict of_bias) {
    float *__restrict slopes = some, *__restrict products = some + n;
    std::memset(of_weight, 0, n * sizeof *of_weight);
    std::memset(of_bias, 0, n * sizeof *of_bias);
    for (Count start = 0; start < windows; start += FLUSH) {
        std::memset(some, 0, 2 * n * sizeof *some);
        for (Count w = start; w < least(start + FLUSH, windows); w++) {
            const T *__restrict value = most + w * n, *__restrict own = slope + w * n;
#pragma omp simd
            for (Count c = 0; c < n; c++) {
                float s = found.scale[c] * up(value[c]) + found.shift[c] > 0 ? up(own[c]) : 0.0f;
                slopes[c] += s;
                products[c] += s * (up(value[c]) - found.mean[c]);
            }
        }
        for (Count c = 0; c < n; c++) {
            of_bias[c] += slopes[c];
            of_weight[c] += products[c] * found.inverse[c];
        }
    }
}

// With n pixels of a channel, of_x = scale * (s - of_bias / n - x' of_weight / n): the last two terms are the line.
template <typename T>
void backward(const T *x, const Sizes &of, float *room, const T *top, const T *slope, float *some, T *of_x,
              float *of_weight, float *of_bias) {
    const Count n = of.channels, pixels = of.pixels();
    const Count windows = of.images * (of.height / of.pool_height) * (of.width / of.pool_width);
    const Found found(room, n);
    const int count = of.window();
    reduce(count == 1 ? x : top, slope, windows, n, found, some, of_weight, of_bias);
    float *__restrict line = some;
    for (Count c = 0; c < n; c++) {
        line[n + c] = -found.scale[c] * found.inverse[c] * of_weight[c] / pixels;
        line[c] = -found.scale[c] * of_bias[c] / pixels - found.mean[c] * line[n + c];
    }
    const T *there[MOST];
    T *given[MOST];
    for (Count image = 0; image < of.images; image++)
        for (Count i = 0; i < of.height; i += of.pool_height)
            for (Count j = 0; j < of.width; j += of.pool_width) {
                int inside = 0;
                for (Count row = i; row < least(i + of.pool_height, of.height); row++)
                    for (Count column = j; column < least(j + of.pool_width, of.width); column++, inside++) {
                        Count place = ((image * of.height + row) * of.width + column) * n;
                        there[inside] = x + place, given[inside] = of_x + place;
                    }
                if (inside < count) {  // the pool leaves them out
                    for (int k = 0; k < inside; k++)
#pragma omp simd
                        for (Count c = 0; c < n; c++) given[k][c] = down<T>(line[c] + line[n + c] * up(there[k][c]));
                    continue;
                }
                if (count == 4) spread(there, 4, n, found, line, top, slope, given);
                else if (count == 1) spread(there, 1, n, found, line, top, slope, given);
                else spread(there, count, n, found, line, top, slope, given);
                slope += n;
                if (count > 1) top += n;
            }
}

// The sum of all squares.
template <typename T> double squares(const T *__restrict x, Count size) {
    constexpr Count LANES = 64;
    double total = 0;
    for (Count start = 0; start < size; start += BLOCK) {
        const Count end = least(start + BLOCK, size), whole = start + (end - start) / LANES * LANES;
        float lanes[LANES] = {};
        for (Count i = start; i < whole; i += LANES)
            for (Count lane = 0; lane < LANES; lane++) lanes[lane] += up(x[i + lane]) * up(x[i + lane]);
        for (Count i = whole; i < end; i++) lanes[i - whole] += up(x[i]) * up(x[i]);
        for (float lane : lanes) total += lane;
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

// Mean and variance of every channel: the first doubles of `room`, which has three of each.
void moments_float(const float *x, Sizes of, double *room) { moments(x, of, room); }
void moments_half(const Half *x, Sizes of, double *room) { moments(x, of, room); }

// relu(max_pool(norm(x))) where what is found of every channel is known: four floats of each.
void pooled_float(const float *x, Sizes of, float *found, float *out) {
    pooled<float>(x, of, Found(found, of.channels), nullptr, out);
}
void pooled_half(const Half *x, Sizes of, float *found, Half *out) {
    pooled<Half>(x, of, Found(found, of.channels), nullptr, out);
}

// The same with the statistics of the batch, from which `found` is filled. `top` is of the size of `out`, and null where
// windows are single pixels.
void forward_float(const float *x, Sizes of, const float *weight, const float *bias, double eps, double *room,
                   float *found, float *top, float *out) {
    forward(x, of, weight, bias, eps, room, found, top, out);
}
void forward_half(const Half *x, Sizes of, const float *weight, const float *bias, double eps, double *room,
                  float *found, Half *top, Half *out) {
    forward(x, of, weight, bias, eps, room, found, top, out);
}

// Its gradients. `some` has room for two floats of every channel.
void backward_float(const float *x, Sizes of, float *found, const float *top, const float *slope, float *some,
                    float *of_x, float *of_weight, float *of_bias) {
    backward(x, of, found, top, slope, some, of_x, of_weight, of_bias);
}
void backward_half(const Half *x, Sizes of, float *found, const Half *top, const Half *slope, float *some, Half *of_x,
                   float *of_weight, float *of_bias) {
    backward(x, of, found, top, slope, some, of_x, of_weight, of_bias);
}

// A step of SGD for each of some copies: its gradient is divided by what makes it too long, if it is.
void sgd(const Weight *weights, Count count, Count copies, Step by) {
    for (Count copy = 0; copy < copies; copy++) {
        float scale = 1;
        if (by.clip > 0) {
            double total = 0;
            for (Count w = 0; w < count; w++)
                total += weights[w].half == nullptr ? length<float>(weights[w], copy) : length<Half>(weights[w], copy);
            float excess = (static_cast<float>(std::sqrt(total)) + 1e-6f) / by.clip;
            scale = excess > 1 ? 1 / excess : 1;
        }
        for (Count w = 0; w < count; w++)
            if (weights[w].half == nullptr) step<float>(weights[w], copy, scale, by);
            else step<Half>(weights[w], copy, scale, by);
    }
}

}  // extern "C"
