// Batch norm, max pool and ReLU as one operation.

#include "norms.h"

extern "C" {

// Mean and variance of every channel: the first doubles of `room`, which has four of each.
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

}  // extern "C"
