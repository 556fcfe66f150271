// A block on grey images: a 3x3 convolution of one channel for each group, batch norm, max pool and ReLU.

#include <vector>

#include "norms.h"

namespace {

// 3x3 weights on images with one channel for each of some groups: one image after another, which stays in a near cache
// until all is done with it, and in it a few channels (Lanes) after others.
class Grey {
  public:
    Grey(const float *x, const Sizes &of, Count groups)
        : x(x), of(of), one(of), groups(groups), row((of.width + 2) * LANES), plane((of.height + 2) * row) {
        one.images = 1;
    }

    const Sizes &each() const { return one; }

    // What the weights (9 x channels) make of an image.
    void convolve(Count image, const float *taps, float *y) {
        for (Count c = 0; c < of.channels; c += LANES) {
            const Count lanes = least(LANES, of.channels - c);
            lay(image, c, lanes);
            Lanes tap[TAPS];
            for (int k = 0; k < TAPS; k++) tap[k] = taken(taps + k * of.channels + c, lanes);
            float *to = y + c;
            for (Count i = 0; i < of.height; i++)
                for (Count j = 0; j < of.width; j++, to += of.channels) {
                    const float *corner = plane.data() + i * row + j * LANES;
                    Lanes value = {};
                    for (int k = 0; k < TAPS; k++) value += tap[k] * near(corner, k);
                    put(value, to, lanes);
                }
        }
    }

    // Adds what the gradient of an image makes of the gradient of the weights.
    void collect(Count image, const float *slope, float *of_taps) {
        for (Count c = 0; c < of.channels; c += LANES) {
            const Count lanes = least(LANES, of.channels - c);
            lay(image, c, lanes);
            Lanes sums[TAPS] = {};
            const float *from = slope + c;
            for (Count i = 0; i < of.height; i++)
                for (Count j = 0; j < of.width; j++, from += of.channels) {
                    const float *corner = plane.data() + i * row + j * LANES;
                    const Lanes own = taken(from, lanes);
                    for (int k = 0; k < TAPS; k++) sums[k] += own * near(corner, k);
                }
            for (int k = 0; k < TAPS; k++)
                for (Count lane = 0; lane < lanes; lane++) of_taps[k * of.channels + c + lane] += sums[k][lane];
        }
    }

  private:
    static constexpr int TAPS = 9;

    const float *x;
    const Sizes of;
    Sizes one;
    const Count groups, row;
    std::vector<float> plane;  // an image with a rim of 0, each pixel once for each lane, from the group it belongs to
    Count laid = -1;           // which image of which group that is, where all lanes belong to one

    Lanes near(const float *corner, int k) const { return taken(corner + k / 3 * row + k % 3 * LANES); }

    void lay(Count image, Count c, Count lanes) {
        const Count own = of.channels / groups, first = c / own, last = (c + lanes - 1) / own;
        if (first == last && laid == image * groups + first) return;
        laid = first == last ? image * groups + first : -1;
        Count group[LANES];
        for (Count lane = 0; lane < LANES; lane++) group[lane] = least((c + lane) / own, groups - 1);
        const float *from = x + image * of.height * of.width * groups;
        for (Count i = 1; i <= of.height; i++)
            for (Count j = 1; j <= of.width; j++, from += groups) {
                float *to = plane.data() + i * row + j * LANES;
                if (first == last)
                    for (Count lane = 0; lane < LANES; lane++) to[lane] = from[first];
                else
                    for (Count lane = 0; lane < LANES; lane++) to[lane] = from[group[lane]];
            }
    }
};

}  // namespace

extern "C" {

// Of what 3x3 weights, as taps (9 x channels), make of images with one channel for each of some groups: the same as
// `forward_float`. `y` is what they make.
void grey_forward(const float *x, Sizes of, Count groups, const float *taps, const float *weight, const float *bias,
                  double eps, double *room, float *found_room, float *y, float *top, float *out) {
    const Count n = of.channels, rows = of.height * of.width;
    const Found found(found_room, n);
    Grey grey(x, of, groups);
    const Sums sums(room, n);
    for (Count image = 0; image < of.images; image++) {
        grey.convolve(image, taps, y + image * rows * n);
        if (image == 0) begin(y, rows, n, sums);
        gather(y + image * rows * n, rows, n, sums);
    }
    settle(of.pixels(), n, sums);
    find(room, n, weight, bias, eps, found);
    pooled(y, of, found, top, out);
}

// The same as `pooled_float`; `y` has room for one image.
void grey_pooled(const float *x, Sizes of, Count groups, const float *taps, float *found, float *y, float *out) {
    Grey grey(x, of, groups);
    for (Count image = 0; image < of.images; image++, out += of.windows() / of.images * of.channels) {
        grey.convolve(image, taps, y);
        pooled<float>(y, grey.each(), Found(found, of.channels), nullptr, out);
    }
}

// The gradients; `of_y` has room for one image, and to `of_taps` they are added.
void grey_backward(const float *x, Sizes of, Count groups, const float *y, float *room, const float *top,
                   const float *slope, float *some, float *of_y, float *of_taps, float *of_weight, float *of_bias) {
    const Count n = of.channels, pixels = of.height * of.width * n, windows = of.windows() / of.images * n;
    const Found found(room, n);
    reduce(top, slope, of.windows(), n, found, some, of_weight, of_bias);
    draw(some, n, of.pixels(), found, of_weight, of_bias);
    Grey grey(x, of, groups);
    for (Count image = 0; image < of.images; image++) {
        spread_all(y + image * pixels, grey.each(), found, some, top + image * windows, slope + image * windows, of_y);
        grey.collect(image, of_y, of_taps);
    }
}

}  // extern "C"
