// 3x3 convolutions of images of few pixels, and their gradients.
//
// Around a pixel near the edge some taps see nothing: an image of 3x3 pixels has 49 pairs of a pixel and a tap, not 81.
// So pixels at one place of all images, around which the same taps see something, are worked on together, and a few
// results of each of a few images are held in registers until they are done. Weights lie as their images do: one number
// of each input for each tap for each output. Inputs come in whole vectors, outputs in whole OUTPUTS.

#include <utility>
#include <vector>

#include "numbers.h"

// Of images, and of how many channels each of some groups takes in and gives out.
struct Tiny {
    Count images, height, width, groups, inputs, outputs;

    Count pixels() const { return height * width; }
    Count taken() const { return groups * inputs; }   // numbers of a pixel
    Count given() const { return groups * outputs; }  // and of a pixel of the result
};

namespace {

constexpr Count TAPS = 9;
constexpr Count OUTPUTS = 4;  // that are held at once in each image; `_OUTPUTS` in tiny.py
constexpr Count IMAGES = 6;   // that these are held of
constexpr Count VECTORS = 4;  // of inputs that are held at once
constexpr Count HELD = 24;    // of them in all images
constexpr Count NEAR = 32;    // outputs whose weights for these stay in a near cache
constexpr Count FAR = 1000;   // pixels, of all images, that stay in the next one

// A tap, and a pixel that it sees or that sees by it.
struct Sight {
    Count tap, pixel;
};

// Around every pixel what its taps see; or if `back`, which pixels' taps see it.
std::vector<std::vector<Sight>> sights(const Tiny &of, bool back) {
    std::vector<std::vector<Sight>> found(of.pixels());
    for (Count i = 0; i < of.height; i++)
        for (Count j = 0; j < of.width; j++)
            for (Count tap = 0; tap < TAPS; tap++) {
                const Count down = tap / 3 - 1, right = tap % 3 - 1;
                const Count row = back ? i - down : i + down, column = back ? j - right : j + right;
                if (row >= 0 && row < of.height && column >= 0 && column < of.width)
                    found[i * of.width + j].push_back({tap, row * of.width + column});
            }
    return found;
}

// The sum of the numbers of a vector, one half added to the other as long as both are vectors.
inline float sum(Lanes value) {
    typedef float Eight __attribute__((vector_size(8 * sizeof(float))));
    typedef float Four __attribute__((vector_size(4 * sizeof(float))));
    Eight eights[2];
    std::memcpy(eights, &value, sizeof value);
    const Eight eight = eights[0] + eights[1];
    Four fours[2];
    std::memcpy(fours, &eight, sizeof eight);
    const Four four = fours[0] + fours[1];
    return (four[0] + four[1]) + (four[2] + four[3]);
}

// Calls what<n> for 1 <= n <= MOST.
template <Count MOST, typename What> inline void with(Count n, What what) {
    if constexpr (MOST > 0) {
        if (n == MOST) what(std::integral_constant<Count, MOST>());
        else with<MOST - 1>(n, what);
    }
}

// Goes through so many of something in equal parts of at most MOST: what(start, how many, as a constant).
template <Count MOST, typename What> inline void parts(Count all, What what) {
    const Count count = (all + MOST - 1) / MOST;
    for (Count part = 0; part < count; part++) {
        const Count start = all * part / count, end = all * (part + 1) / count;
        with<MOST>(end - start, [&](auto size) { what(start, size); });
    }
}

// A pixel of the result, OUTPUTS of it in each of so many images: vectors run over the inputs.
template <Count SIZE>
inline void convolve(const Tiny &of, const std::vector<Sight> &seen, const float *x, const float *weight, float *y) {
    Lanes sums[SIZE][OUTPUTS] = {};
    for (const Sight &at : seen) {
        const float *from = x + at.pixel * of.taken(), *by = weight + at.tap * of.inputs;
        for (Count i = 0; i < of.inputs; i += LANES) {
            Lanes own[OUTPUTS];
            for (Count o = 0; o < OUTPUTS; o++) own[o] = taken(by + o * TAPS * of.inputs + i);
            for (Count image = 0; image < SIZE; image++) {
                const Lanes value = taken(from + image * of.pixels() * of.taken() + i);
                for (Count o = 0; o < OUTPUTS; o++) sums[image][o] += value * own[o];
            }
        }
    }
    for (Count image = 0; image < SIZE; image++)
        for (Count o = 0; o < OUTPUTS; o++) y[image * of.pixels() * of.given() + o] = sum(sums[image][o]);
}

void convolve_all(const float *x, const float *weight, const Tiny &of, float *y) {
    const auto seen = sights(of, false);
    for (Count o = 0; o < of.given(); o += OUTPUTS) {
        const float *own = x + o / of.outputs * of.inputs, *by = weight + o * TAPS * of.inputs;
        for (Count pixel = 0; pixel < of.pixels(); pixel++)
            parts<IMAGES>(of.images, [&](Count image, auto size) {
                convolve<size>(of, seen[pixel], own + image * of.pixels() * of.taken(), by,
                               y + (image * of.pixels() + pixel) * of.given() + o);
            });
    }
}

// Adds to a pixel of the gradient of so many images, a few vectors of inputs, what some outputs make of it.
template <Count SIZE, Count WIDE>
inline void collect(const Tiny &of, const std::vector<Sight> &seen, const float *slope, const float *weight,
                    Count outputs, bool first, float *of_x) {
    Lanes sums[SIZE][WIDE] = {};
    if (!first)
        for (Count image = 0; image < SIZE; image++)
            for (Count v = 0; v < WIDE; v++) sums[image][v] = taken(of_x + image * of.pixels() * of.taken() + v * LANES);
    for (const Sight &at : seen) {
        const float *from = slope + at.pixel * of.given(), *by = weight + at.tap * of.inputs;
        for (Count o = 0; o < outputs; o++, by += TAPS * of.inputs) {
            Lanes own[WIDE];
            for (Count v = 0; v < WIDE; v++) own[v] = taken(by + v * LANES);
            for (Count image = 0; image < SIZE; image++) {
                const float value = from[image * of.pixels() * of.given() + o];
                for (Count v = 0; v < WIDE; v++) sums[image][v] += value * own[v];
            }
        }
    }
    for (Count image = 0; image < SIZE; image++)
        for (Count v = 0; v < WIDE; v++) put(sums[image][v], of_x + image * of.pixels() * of.taken() + v * LANES);
}

void collect_all(const float *slope, const float *weight, const Tiny &of, float *of_x) {
    const auto seen = sights(of, true);
    for (Count group = 0; group < of.groups; group++)
        parts<VECTORS>(of.inputs / LANES, [&](Count vector, auto wide) {
            const float *by = weight + group * of.outputs * TAPS * of.inputs + vector * LANES;
            float *to = of_x + group * of.inputs + vector * LANES;
            for (Count o = 0; o < of.outputs; o += NEAR)
                for (Count pixel = 0; pixel < of.pixels(); pixel++)
                    parts<HELD / (wide < 2 ? 2 : wide)>(of.images, [&](Count image, auto size) {
                        collect<size, wide>(
                            of, seen[pixel], slope + image * of.pixels() * of.given() + group * of.outputs + o,
                            by + o * TAPS * of.inputs, least(NEAR, of.outputs - o), o == 0,
                            to + (image * of.pixels() + pixel) * of.taken());
                    });
        });
}

// Where a pixel of the gradient is, and the pixel that a tap sees around it.
struct Pair {
    Count own, seen;
};

// All pairs of a tap in so many images, one image after another.
std::vector<Pair> pairs_of(const Tiny &of, Count tap, Count images) {
    std::vector<Pair> found;
    const auto seen = sights(of, false);
    for (Count image = 0; image < images; image++)
        for (Count pixel = 0; pixel < of.pixels(); pixel++)
            for (const Sight &at : seen[pixel])
                if (at.tap == tap)
                    found.push_back({(image * of.pixels() + pixel) * of.given(),
                                     (image * of.pixels() + at.pixel) * of.taken()});
    return found;
}

// Adds to the gradient of a tap's weights, a few vectors of inputs of some outputs, what so many pairs make of it. There
// is one loop: where there were two the compiler kept sums in memory.
template <Count SIZE, Count WIDE>
inline void weigh(const Tiny &of, const Pair *pairs, Count count, const float *x, const float *slope, bool first,
                  float *of_tap) {
    Lanes sums[SIZE][WIDE] = {};
    if (!first)
        for (Count o = 0; o < SIZE; o++)
            for (Count v = 0; v < WIDE; v++) sums[o][v] = taken(of_tap + o * TAPS * of.inputs + v * LANES);
    for (Count k = 0; k < count; k++) {
        const float *from = x + pairs[k].seen, *own = slope + pairs[k].own;
        Lanes value[WIDE];
        for (Count v = 0; v < WIDE; v++) value[v] = taken(from + v * LANES);
        for (Count o = 0; o < SIZE; o++)
            for (Count v = 0; v < WIDE; v++) sums[o][v] += own[o] * value[v];
    }
    for (Count o = 0; o < SIZE; o++)
        for (Count v = 0; v < WIDE; v++) put(sums[o][v], of_tap + o * TAPS * of.inputs + v * LANES);
}

void weigh_all(const float *x, const float *slope, const Tiny &of, float *of_weight) {
    const Count near = least(FAR / of.pixels() + 1, of.images);
    std::vector<Pair> pairs[TAPS];
    for (Count tap = 0; tap < TAPS; tap++) pairs[tap] = pairs_of(of, tap, near);
    for (Count group = 0; group < of.groups; group++)
        parts<VECTORS>(of.inputs / LANES, [&](Count vector, auto wide) {
            float *to = of_weight + group * of.outputs * TAPS * of.inputs + vector * LANES;
            for (Count image = 0; image < of.images; image += near) {
                const Count images = least(near, of.images - image);
                const float *from = x + image * of.pixels() * of.taken() + group * of.inputs + vector * LANES;
                const float *own = slope + image * of.pixels() * of.given() + group * of.outputs;
                parts<HELD / (wide < 2 ? 2 : wide)>(of.outputs, [&](Count o, auto size) {
                    for (Count tap = 0; tap < TAPS; tap++) {
                        const Count count = static_cast<Count>(pairs[tap].size()) / near * images;
                        weigh<size, wide>(of, pairs[tap].data(), count, from, own + o, image == 0,
                                          to + (o * TAPS + tap) * of.inputs);
                    }
                });
            }
        });
}

}  // namespace

extern "C" {

// A convolution, and the gradients of its images and of its weights.
void tiny(const float *x, const float *weight, Tiny of, float *y) { convolve_all(x, weight, of, y); }
void tiny_of_x(const float *slope, const float *weight, Tiny of, float *of_x) { collect_all(slope, weight, of, of_x); }
void tiny_of_weight(const float *x, const float *slope, Tiny of, float *of_weight) {
    weigh_all(x, slope, of, of_weight);
}

}  // extern "C"
