// Batch norm, max pool and ReLU of images, in as few passes over memory as they need, one image or a batch at a time.
//
// What there is one of for each channel is float; sums over many numbers are taken in float a few rows at a time, and
// what the norm divides by goes on in double.

#pragma once

#include "numbers.h"

// Of images and of the windows of a pool, which leaves out what is over at the right and the lower edge.
struct Sizes {
    Count images, height, width, channels, pool_height, pool_width;

    Count pixels() const { return images * height * width; }
    Count windows() const { return images * (height / pool_height) * (width / pool_width); }
    int window() const { return static_cast<int>(pool_height * pool_width); }
};

namespace {

constexpr Count FLUSH = 128;  // rows whose sums are taken in float
constexpr Count LOOKED_AT = 8;
constexpr int MOST = 16;  // pixels in a window of a pool; `_WINDOW` in norms.py

// What the forward pass finds of every channel, and the way back needs.
struct Found {
    float *mean, *inverse, *scale, *shift;  // inverse is 1 / deviation; the norm is scale * x + shift

    Found(float *room, Count channels)
        : mean(room), inverse(room + channels), scale(room + 2 * channels), shift(room + 3 * channels) {}
};

// Of every channel: sums over rows and over their squares, of what is left of `near`, a value near the mean, so that
// squares keep their digits. In the end the sums are mean and variance. `room` has four doubles of each channel.
struct Sums {
    double *total, *squares;
    float *near, *some, *some_squares;

    Sums(double *room, Count channels)
        : total(room), squares(room + channels), near(reinterpret_cast<float *>(room + 2 * channels)),
          some(near + channels), some_squares(near + 2 * channels) {}
};

// Nothing is summed yet; `near` is the mean of a few rows from all over x, since those at an edge may be unlike others.
template <typename T> void begin(const T *x, Count rows, Count n, Sums sums) {
    const Count looked_at = least(LOOKED_AT, rows);
    std::memset(sums.total, 0, 2 * n * sizeof(double));
    std::memset(sums.near, 0, n * sizeof(float));
    for (Count k = 0; k < looked_at; k++) {
        const T *row = x + (2 * k + 1) * rows / (2 * looked_at) * n;
        for (Count c = 0; c < n; c++) sums.near[c] += up(row[c]) / looked_at;
    }
}

template <typename T> void gather(const T *__restrict x, Count rows, Count n, Sums sums) {
    const float *__restrict near = sums.near;
    float *__restrict some = sums.some, *__restrict some_squares = sums.some_squares;
    for (Count start = 0; start < rows; start += FLUSH) {
        std::memset(some, 0, 2 * n * sizeof *some);
        for (Count p = start; p < least(start + FLUSH, rows); p++) {
            const T *__restrict row = x + p * n;
#pragma omp simd
            for (Count c = 0; c < n; c++) {
                float off = up(row[c]) - near[c];
                some[c] += off;
                some_squares[c] += off * off;
            }
        }
        for (Count c = 0; c < n; c++) {
            sums.total[c] += some[c];
            sums.squares[c] += some_squares[c];
        }
    }
}

inline void settle(Count rows, Count n, Sums sums) {
    for (Count c = 0; c < n; c++) {
        double off = sums.total[c] / rows, rest = sums.squares[c] / rows - off * off;
        sums.total[c] = sums.near[c] + off;
        sums.squares[c] = rest < 0 ? 0 : rest;
    }
}

// Mean and variance of every channel.
template <typename T> void moments(const T *x, const Sizes &of, double *room) {
    const Sums sums(room, of.channels);
    begin(x, of.pixels(), of.channels, sums);
    gather(x, of.pixels(), of.channels, sums);
    settle(of.pixels(), of.channels, sums);
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
            most = other > most || other != other ? other : most;  // NaN stays NaN
        }
        float value = found.scale[c] * (sign * most) + found.shift[c];
        if (top != nullptr) top[c] = down<T>(sign * most);
        out[c] = down<T>(value < 0 ? 0 : value);
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

// What there is to find, from mean and variance.
void find(const double *room, Count channels, const float *weight, const float *bias, double eps, Found found) {
    for (Count c = 0; c < channels; c++) {
        double mean = room[c], inverse = 1 / std::sqrt(room[channels + c] + eps);
        found.mean[c] = static_cast<float>(mean);
        found.inverse[c] = static_cast<float>(inverse);
        found.scale[c] = static_cast<float>(weight[c] * inverse);
        found.shift[c] = static_cast<float>(bias[c] - mean * weight[c] * inverse);
    }
}

template <typename T>
void forward(const T *x, const Sizes &of, const float *weight, const float *bias, double eps, double *room,
             float *found_room, T *top, T *out) {
    const Found found(found_room, of.channels);
    moments(x, of, room);
    find(room, of.channels, weight, bias, eps, found);
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
void draw(float *line, Count n, Count pixels, Found found, const float *of_weight, const float *of_bias) {
    for (Count c = 0; c < n; c++) {
        line[n + c] = -found.scale[c] * found.inverse[c] * of_weight[c] / pixels;
        line[c] = -found.scale[c] * of_bias[c] / pixels - found.mean[c] * line[n + c];
    }
}

// of_x, from the line and the slopes of all windows.
template <typename T>
void spread_all(const T *x, const Sizes &of, Found found, const float *line, const T *top, const T *slope, T *of_x) {
    const Count n = of.channels;
    const int count = of.window();
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

template <typename T>
void backward(const T *x, const Sizes &of, float *room, const T *top, const T *slope, float *some, T *of_x,
              float *of_weight, float *of_bias) {
    const Found found(room, of.channels);
    reduce(of.window() == 1 ? x : top, slope, of.windows(), of.channels, found, some, of_weight, of_bias);
    draw(some, of.channels, of.pixels(), found, of_weight, of_bias);
    spread_all(x, of, found, some, top, slope, of_x);
}

}  // namespace
