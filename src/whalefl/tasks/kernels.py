"""GPU kernels for what stands around a convolution: batch norm with batch statistics, max pool and ReLU in one pass.

Library operations go over an activation a dozen times for these and start as many kernels; here it is read once for
the moments and once for the result, and as often on the way back. Images have their channels last: x[n, i, j, c] lies
at ((n H + i) W + j) C + c. A *window* is what the pool takes together, PH x PW pixels; its gradient goes to the first
largest of them, found again from x instead of being stored.

Sums over pixels are taken in SPLITS parts by as many programs, and whoever needs them adds the parts up, always in
the same order: results repeat bit for bit.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

TAPS = tl.constexpr(16)
"""Room for the nine weights of a 3x3 convolution and a one, whose products with the weights' inputs are their sums."""


@triton.jit(do_not_specialize=["rows"])
def moments(x_ptr, parts_ptr, rows, C, SPLITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Sum and sum of squares of each channel over a part of the rows, both of x minus its first row: with that, a mean
    far from 0 costs no precision (an outlier there would cost some). Rows are pixels; parts are (2, SPLITS, C)."""
    split, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    first = tl.load(x_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    each = tl.cdiv(rows, SPLITS)
    start, stop = split * each, tl.minimum((split + 1) * each, rows)
    total, squares = tl.zeros([BR, BC], tl.float32), tl.zeros([BR, BC], tl.float32)
    for begin in range(start, stop, BR):
        r = begin + tl.arange(0, BR)
        inside = (r < stop)[:, None] & (c < C)[None, :]
        x = tl.load(x_ptr + r[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x - first[None, :], 0.0)
        total += x
        squares += x * x
    tl.store(parts_ptr + split * C + c, tl.sum(total, axis=0), mask=c < C)
    tl.store(parts_ptr + (SPLITS + split) * C + c, tl.sum(squares, axis=0), mask=c < C)


@triton.jit
def _added(parts_ptr, which, c, C, SPLITS: tl.constexpr):
    """The sum of all parts of a moment of channels c."""
    s = tl.arange(0, SPLITS)
    places = parts_ptr + (which * SPLITS + s)[:, None] * C + c[None, :]
    return tl.sum(tl.load(places, mask=(c < C)[None, :], other=0.0), axis=0)


@triton.jit
def _statistics(x_ptr, parts_ptr, c, C, rows, eps, SPLITS: tl.constexpr):
    """Mean and 1 / standard deviation of channels c."""
    first = tl.load(x_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    off = _added(parts_ptr, 0, c, C, SPLITS) / rows
    variance = _added(parts_ptr, 1, c, C, SPLITS) / rows - off * off
    # Not clamped from above: what is not a number stays so, and the divergence is seen.
    return first + off, 1.0 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps)


@triton.jit
def _pixels(x_ptr, q, inside, c, C, H, W, A, B, PH: tl.constexpr, PW: tl.constexpr, a: tl.constexpr, b: tl.constexpr):
    """Pixel (a, b) of windows q, of which each image has A x B."""
    if PH * PW == 1:
        return tl.load(x_ptr + q[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
    i, j = (q // B) % A * PH + a, q % B * PW + b
    places = x_ptr + (((q // (A * B)) * H + i) * W + j)[:, None] * C + c[None, :]
    there = inside & ((i < H) & (j < W))[:, None]
    return tl.load(places, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _pooled(
    x_ptr,
    q,
    inside,
    c,
    C,
    H,
    W,
    scale,
    shift,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """max(0, largest of a window of scale x + shift) of whole windows q."""
    largest = tl.zeros([BQ, BC], tl.float32)
    for a in tl.static_range(PH):
        for b in tl.static_range(PW):
            x = _pixels(x_ptr, q, inside, c, C, H, W, H // PH, W // PW, PH, PW, a, b)
            y = x * scale[None, :] + shift[None, :]
            largest = tl.maximum(largest, y, propagate_nan=tl.PropagateNan.ALL)
    return largest


@triton.jit(do_not_specialize=["windows", "H", "W"])
def scaled(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    windows,
    C,
    H,
    W,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """max(0, largest of a window of scale x + shift): a norm whose statistics are known."""
    q, c = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    scale, shift = tl.load(scale_ptr + c, mask=c < C, other=0.0), tl.load(shift_ptr + c, mask=c < C, other=0.0)
    largest = _pooled(x_ptr, q, inside, c, C, H, W, scale, shift, PH, PW, BQ, BC)
    tl.store(out_ptr + q[:, None] * C + c[None, :], largest.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["windows", "rows", "H", "W"])
def normed(
    x_ptr,
    parts_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    windows,
    rows,
    C,
    H,
    W,
    eps,
    SPLITS: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """max(0, largest of a window of weight (x - mean) / deviation + bias), for every whole window."""
    q, c = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    mean, scale = _statistics(x_ptr, parts_ptr, c, C, rows, eps, SPLITS)
    scale *= tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    largest = _pooled(x_ptr, q, inside, c, C, H, W, scale, shift, PH, PW, BQ, BC)
    places = out_ptr + q[:, None] * C + c[None, :]
    tl.store(places, largest.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["windows", "rows", "H", "W"])
def reduced(
    x_ptr,
    parts_ptr,
    weight_ptr,
    bias_ptr,
    slope_ptr,
    sums_ptr,
    windows,
    rows,
    C,
    H,
    W,
    eps,
    SPLITS: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """Of the gradient g before the pool, a part of the sums of g and of g (x - mean) / deviation: (2, SPLITS, C)."""
    split, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    mean, deviation = _statistics(x_ptr, parts_ptr, c, C, rows, eps, SPLITS)
    scale = deviation * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    each = tl.cdiv(windows, SPLITS)
    start, stop = split * each, tl.minimum((split + 1) * each, windows)
    total, products = tl.zeros([BQ, BC], tl.float32), tl.zeros([BQ, BC], tl.float32)
    for begin in range(start, stop, BQ):
        q = begin + tl.arange(0, BQ)
        inside = (q < stop)[:, None] & (c < C)[None, :]
        slope = tl.load(slope_ptr + q[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        best = tl.zeros([BQ, BC], tl.float32)
        largest = tl.full([BQ, BC], float("-inf"), tl.float32)
        for a in tl.static_range(PH):
            for b in tl.static_range(PW):
                x = _pixels(x_ptr, q, inside, c, C, H, W, H // PH, W // PW, PH, PW, a, b)
                y = x * scale[None, :] + shift[None, :]
                best = tl.where(y > largest, x, best)
                largest = tl.maximum(largest, y)
        g = tl.where(inside & (largest > 0), slope, 0.0)
        total += g
        products += g * (best - mean[None, :]) * deviation[None, :]
    tl.store(sums_ptr + split * C + c, tl.sum(total, axis=0), mask=c < C)
    tl.store(sums_ptr + (SPLITS + split) * C + c, tl.sum(products, axis=0), mask=c < C)


@triton.jit(do_not_specialize=["windows", "rows", "H", "W"])
def spread(
    x_ptr,
    parts_ptr,
    weight_ptr,
    bias_ptr,
    slope_ptr,
    sums_ptr,
    of_x_ptr,
    of_weight_ptr,
    of_bias_ptr,
    windows,
    rows,
    C,
    H,
    W,
    eps,
    SPLITS: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """The gradient of x: weight / deviation (g - mean of g - x^ mean of g x^), with x^ = (x - mean) / deviation.

    It goes over all windows, those cut off by the edge too: their pixels are part of the means, though the pool
    leaves them out.
    """
    q, c = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    mean, deviation = _statistics(x_ptr, parts_ptr, c, C, rows, eps, SPLITS)
    scale = deviation * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    total, products = _added(sums_ptr, 0, c, C, SPLITS), _added(sums_ptr, 1, c, C, SPLITS)
    if tl.program_id(0) == 0:
        tl.store(of_bias_ptr + c, total, mask=c < C)
        tl.store(of_weight_ptr + c, products, mask=c < C)
    total, products = total / rows, products / rows

    A, B = tl.cdiv(H, PH), tl.cdiv(W, PW)
    i, j = (q // B) % A, q % B
    whole = (i < H // PH) & (j < W // PW)
    pooled = ((q // (A * B)) * (H // PH) + i) * (W // PW) + j
    wanted = inside & whole[:, None]
    slope = tl.load(slope_ptr + pooled[:, None] * C + c[None, :], mask=wanted, other=0.0).to(tl.float32)
    largest = tl.zeros([BQ, BC], tl.float32)
    for a in tl.static_range(PH):
        for b in tl.static_range(PW):
            x = _pixels(x_ptr, q, inside, c, C, H, W, A, B, PH, PW, a, b)
            largest = tl.maximum(largest, x * scale[None, :] + shift[None, :])
    waiting = wanted & (largest > 0)  # whose gradient has not found its pixel yet
    for a in tl.static_range(PH):
        for b in tl.static_range(PW):
            x = _pixels(x_ptr, q, inside, c, C, H, W, A, B, PH, PW, a, b)
            here = waiting & (x * scale[None, :] + shift[None, :] == largest)
            waiting = waiting & (here == 0)
            normal = (x - mean[None, :]) * deviation[None, :]
            of_x = scale[None, :] * (tl.where(here, slope, 0.0) - total[None, :] - normal * products[None, :])
            row, column = i * PH + a, j * PW + b
            places = of_x_ptr + (((q // (A * B)) * H + row) * W + column)[:, None] * C + c[None, :]
            there = inside & ((row < H) & (column < W))[:, None]
            tl.store(places, of_x.to(of_x_ptr.dtype.element_ty), mask=there)


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
def grey_statistics(weight_ptr, parts_ptr, found_ptr, pixels, C, eps, SPLITS: tl.constexpr, BC: tl.constexpr):
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
def _grey_pixel(
    x_ptr, weight_ptr, q, c, windows, C, H, W, BQ: tl.constexpr, BC: tl.constexpr, a: tl.constexpr, b: tl.constexpr
):
    """Pixel (a, b) of windows q of the convolution."""
    y = tl.zeros([BQ, BC], tl.float32)
    for t in tl.static_range(9):
        weight = tl.load(weight_ptr + c * 9 + t, mask=c < C, other=0.0)
        y += _tap(x_ptr, q, windows, H, W, H // 2, W // 2, a, b, t)[:, None] * weight[None, :]
    return y


@triton.jit(do_not_specialize=["windows", "H", "W"])
def grey_normed(
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
            y = _grey_pixel(x_ptr, weight_ptr, q, c, windows, C, H, W, BQ, BC, a, b) * scale[None, :] + shift[None, :]
            largest = tl.maximum(largest, y, propagate_nan=tl.PropagateNan.ALL)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    tl.store(out_ptr + q[:, None] * C + c[None, :], largest.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["windows", "H", "W"])
def grey_reduced(
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
                y = _grey_pixel(x_ptr, weight_ptr, q, c, stop, C, H, W, BQ, BC, a, b) * scale[None, :] + shift[None, :]
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
def grey_slopes(
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
