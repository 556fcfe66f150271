"""GPU kernels for a block on images of one channel: convolution, batch norm, max pool of 2x2 and ReLU in one pass.

None of the convolution's results is stored: mean, variance and the gradient of the nine weights follow from the
products of the pixels of 3x3 patches. Images, windows and sums in SPLITS parts are as in `tasks.norm_kernels`.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

TAPS = tl.constexpr(16)
"""Room for the nine weights of a 3x3 convolution and a one, whose products with the weights' inputs are their sums."""


@triton.jit(do_not_specialize=["pixels", "H", "W"])
def patch_products(x_ptr, parts_ptr, pixels, H, W, SPLITS: tl.constexpr, BR: tl.constexpr):
    """The products of all pairs of pixels of a 3x3 patch, summed over a part of the patches: (SPLITS, TAPS, TAPS).

    Tap 9 is 1, so row 9 holds the sums of the pixels themselves.
    """
    split, t = tl.program_id(0), tl.arange(0, TAPS)
    each = tl.cdiv(pixels, SPLITS)
    start, stop = split * each, tl.minimum((split + 1) * each, pixels)
    total = tl.zeros([TAPS, TAPS], tl.float32)
    for begin in range(start, stop, BR):
        p = begin + tl.arange(0, BR)
        i, j = ((p // W) % H)[:, None] + t // 3 - 1, (p % W)[:, None] + t % 3 - 1
        inside = (p < stop)[:, None] & (t < 9)[None, :] & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        around = tl.load(x_ptr + ((p // (H * W))[:, None] * H + i) * W + j, mask=inside, other=0.0)
        around = tl.where((p < stop)[:, None] & (t == 9)[None, :], 1.0, around)
        # Three products of halves of the digits: as exact as float32, and by the matrix units.
        total += tl.dot(tl.trans(around), around, input_precision="tf32x3")
    places = parts_ptr + (t + split * TAPS)[:, None] * TAPS + t[None, :]
    tl.store(places, total)


@triton.jit
def _patch_means(parts_ptr, pixels, SPLITS: tl.constexpr):
    """The mean products of all pairs of pixels of a patch, and the means of the pixels (0 beyond the ninth)."""
    t = tl.arange(0, TAPS)
    places = parts_ptr + t[:, None] * TAPS + t[None, :]
    total = tl.zeros([TAPS, TAPS], tl.float32)
    for split in tl.static_range(SPLITS):  # unrolled, so that all of them are under way at once
        total += tl.load(places + split * TAPS * TAPS)
    taps = (t < 9)[:, None] & (t < 9)[None, :]
    means = tl.sum(tl.where((t == 9)[:, None] & (t < 9)[None, :], total, 0.0), axis=0) / pixels
    return tl.where(taps, total, 0.0) / pixels, means


@triton.jit(do_not_specialize=["pixels"])
def statistics(weight_ptr, parts_ptr, found_ptr, pixels, C, eps, SPLITS: tl.constexpr, BC: tl.constexpr):
    """Mean and 1 / deviation of each channel of a convolution of grey images, from products of their pixels: w.m and
    w'(E - m m')w with the means m and mean products E. The convolution is not needed for it. (2, C)."""
    c, t = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, TAPS)
    weight = tl.load(weight_ptr + c[:, None] * 9 + t[None, :], mask=(c < C)[:, None] & (t < 9)[None, :], other=0.0)
    products, means = _patch_means(parts_ptr, pixels, SPLITS)
    spreads = products - means[:, None] * means[None, :]
    mean = tl.sum(weight * means[None, :], axis=1)
    variance = tl.sum(tl.dot(weight, spreads, input_precision="ieee") * weight, axis=1)
    tl.store(found_ptr + c, mean, mask=c < C)
    tl.store(found_ptr + C + c, 1.0 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps), mask=c < C)


@triton.jit
def _tap(x_ptr, q, windows, H, W, A, B, a: tl.constexpr, b: tl.constexpr, t: tl.constexpr):
    """Pixel t of the patch around pixel (a, b) of windows q of 2x2, 0 beyond the edge."""
    i, j = (q // B) % A * 2 + a + t // 3 - 1, q % B * 2 + b + t % 3 - 1
    inside = (q < windows) & (i >= 0) & (i < H) & (j >= 0) & (j < W)
    return tl.load(x_ptr + ((q // (A * B)) * H + i) * W + j, mask=inside, other=0.0)


@triton.jit
def _best_tap(x_ptr, q, best, windows, H, W, t: tl.constexpr):
    """Pixel t of the patch around the largest pixel of each window, which for channels is another one."""
    upper = tl.where(
        best == 0,
        _tap(x_ptr, q, windows, H, W, H // 2, W // 2, 0, 0, t)[:, None],
        _tap(x_ptr, q, windows, H, W, H // 2, W // 2, 0, 1, t)[:, None],
    )
    lower = tl.where(
        best == 2,
        _tap(x_ptr, q, windows, H, W, H // 2, W // 2, 1, 0, t)[:, None],
        _tap(x_ptr, q, windows, H, W, H // 2, W // 2, 1, 1, t)[:, None],
    )
    return tl.where(best < 2, upper, lower)


@triton.jit
def _pixel(
    x_ptr, weight_ptr, q, c, windows, C, H, W, BQ: tl.constexpr, BC: tl.constexpr, a: tl.constexpr, b: tl.constexpr
):
    """Pixel (a, b) of windows q of the convolution."""
    y = tl.zeros([BQ, BC], tl.float32)
    for t in tl.static_range(9):
        weight = tl.load(weight_ptr + c * 9 + t, mask=c < C, other=0.0)
        y += _tap(x_ptr, q, windows, H, W, H // 2, W // 2, a, b, t)[:, None] * weight[None, :]
    return y


@triton.jit(do_not_specialize=["windows", "H", "W"])
def normed(
    x_ptr,
    weight_ptr,
    found_ptr,
    gain_ptr,
    bias_ptr,
    out_ptr,
    windows,
    C,
    H,
    W,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """Convolution, norm, 2x2 pool and ReLU of grey images; nothing in between is written down."""
    q, c = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.program_id(1) * BC + tl.arange(0, BC)
    scale = tl.load(found_ptr + C + c, mask=c < C, other=0.0) * tl.load(gain_ptr + c, mask=c < C, other=0.0)
    mean = tl.load(found_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    largest = tl.zeros([BQ, BC], tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            y = _pixel(x_ptr, weight_ptr, q, c, windows, C, H, W, BQ, BC, a, b) * scale[None, :] + shift[None, :]
            largest = tl.maximum(largest, y, propagate_nan=tl.PropagateNan.ALL)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    tl.store(out_ptr + q[:, None] * C + c[None, :], largest.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["windows", "H", "W"])
def reduced(
    x_ptr,
    weight_ptr,
    found_ptr,
    gain_ptr,
    bias_ptr,
    slope_ptr,
    sums_ptr,
    windows,
    C,
    H,
    W,
    SPLITS: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """Of the gradient g before the pool, a part of the sums of g times each pixel of its patch, and (tap 9) of g:
    (SPLITS, TAPS, C). g is 0 but at the largest pixel of each window."""
    split, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    scale = tl.load(found_ptr + C + c, mask=c < C, other=0.0) * tl.load(gain_ptr + c, mask=c < C, other=0.0)
    mean = tl.load(found_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    each = tl.cdiv(windows, SPLITS)
    start, stop = split * each, tl.minimum((split + 1) * each, windows)
    # A sum of its own for every tap, reduced once at the end: reducing is what would take the time.
    nothing = tl.zeros([BQ, BC], tl.float32)
    t0, t1, t2, t3, t4 = nothing, nothing, nothing, nothing, nothing
    t5, t6, t7, t8, t9 = nothing, nothing, nothing, nothing, nothing
    for begin in range(start, stop, BQ):
        q = begin + tl.arange(0, BQ)
        inside = (q < stop)[:, None] & (c < C)[None, :]
        slope = tl.load(slope_ptr + q[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        largest = tl.full([BQ, BC], float("-inf"), tl.float32)
        best = tl.zeros([BQ, BC], tl.int32)
        for a in tl.static_range(2):
            for b in tl.static_range(2):
                y = _pixel(x_ptr, weight_ptr, q, c, stop, C, H, W, BQ, BC, a, b) * scale[None, :] + shift[None, :]
                best = tl.where(y > largest, 2 * a + b, best)
                largest = tl.maximum(largest, y)
        g = tl.where(inside & (largest > 0), slope, 0.0)
        t0 += g * _best_tap(x_ptr, q, best, stop, H, W, 0)
        t1 += g * _best_tap(x_ptr, q, best, stop, H, W, 1)
        t2 += g * _best_tap(x_ptr, q, best, stop, H, W, 2)
        t3 += g * _best_tap(x_ptr, q, best, stop, H, W, 3)
        t4 += g * _best_tap(x_ptr, q, best, stop, H, W, 4)
        t5 += g * _best_tap(x_ptr, q, best, stop, H, W, 5)
        t6 += g * _best_tap(x_ptr, q, best, stop, H, W, 6)
        t7 += g * _best_tap(x_ptr, q, best, stop, H, W, 7)
        t8 += g * _best_tap(x_ptr, q, best, stop, H, W, 8)
        t9 += g
    places = sums_ptr + split * TAPS * C + c
    tl.store(places, tl.sum(t0, axis=0), mask=c < C)
    tl.store(places + C, tl.sum(t1, axis=0), mask=c < C)
    tl.store(places + 2 * C, tl.sum(t2, axis=0), mask=c < C)
    tl.store(places + 3 * C, tl.sum(t3, axis=0), mask=c < C)
    tl.store(places + 4 * C, tl.sum(t4, axis=0), mask=c < C)
    tl.store(places + 5 * C, tl.sum(t5, axis=0), mask=c < C)
    tl.store(places + 6 * C, tl.sum(t6, axis=0), mask=c < C)
    tl.store(places + 7 * C, tl.sum(t7, axis=0), mask=c < C)
    tl.store(places + 8 * C, tl.sum(t8, axis=0), mask=c < C)
    tl.store(places + 9 * C, tl.sum(t9, axis=0), mask=c < C)


@triton.jit(do_not_specialize=["pixels"])
def slopes(
    weight_ptr,
    found_ptr,
    gain_ptr,
    parts_ptr,
    sums_ptr,
    of_weight_ptr,
    of_gain_ptr,
    of_bias_ptr,
    pixels,
    C,
    SPLITS: tl.constexpr,
    BC: tl.constexpr,
):
    """The gradients of a grey convolution's weights and of its norm.

    With d = 1 / deviation, x^ = (w.p - mean) d over all patches p, and G = sum of g, the gradient before the norm is
    gain d (g - G/n - x^ K/n), K = sum of g x^ = d (w.sum(g p) - mean G); times p and summed over all patches it needs
    only sum(g p), the means m of the pixels and their mean products E: sum(x^ p) = n d (E w - mean m).
    """
    c, t = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, TAPS)
    weight = tl.load(weight_ptr + c[:, None] * 9 + t[None, :], mask=(c < C)[:, None] & (t < 9)[None, :], other=0.0)
    mean = tl.load(found_ptr + c, mask=c < C, other=0.0)
    deviation = tl.load(found_ptr + C + c, mask=c < C, other=0.0)
    total = tl.zeros([BC, TAPS], tl.float32)
    for split in tl.static_range(SPLITS):
        places = sums_ptr + (t + split * TAPS)[None, :] * C + c[:, None]
        total += tl.load(places, mask=(c < C)[:, None] & (t < 10)[None, :], other=0.0)
    of_bias = tl.sum(tl.where((t == 9)[None, :], total, 0.0), axis=1)
    total = tl.where((t < 9)[None, :], total, 0.0)
    of_gain = deviation * (tl.sum(weight * total, axis=1) - mean * of_bias)
    products, means = _patch_means(parts_ptr, pixels, SPLITS)
    leaning = tl.dot(weight, products, input_precision="ieee") - mean[:, None] * means[None, :]
    slopes = total - of_bias[:, None] * means[None, :] - (of_gain * deviation)[:, None] * leaning
    slopes *= (tl.load(gain_ptr + c, mask=c < C, other=0.0) * deviation)[:, None]
    tl.store(of_weight_ptr + c[:, None] * 9 + t[None, :], slopes, mask=(c < C)[:, None] & (t < 9)[None, :])
    tl.store(of_gain_ptr + c, of_gain, mask=c < C)
    tl.store(of_bias_ptr + c, of_bias, mask=c < C)
