"""GPU kernels for what stands around a convolution: batch norm with batch statistics, max pool and ReLU in one pass.

Library operations go over an activation a dozen times for these and start as many kernels; here it is read once for
the moments and once for the result, and as often on the way back. Images have their channels last: x[n, i, j, c] lies
at ((n H + i) W + j) C + c. A *window* is what the pool takes together, PH x PW pixels; its gradient goes to the first
largest of them, found again from x instead of being stored.

Sums over pixels are taken in parts by as many programs, and the last of them to end adds the parts up, always in the
same order: results repeat bit for bit.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, misc"

from __future__ import annotations

import triton
import triton.language as tl

_ADDED = tl.constexpr(16)  # parts at a time


@triton.jit
def _is_last(ended_ptr, programs):
    """Whether this is the last of so many programs that have stored their parts, which counts from 0 again."""
    tl.debug_barrier()  # what all threads have stored is to be there before the count says so
    last = tl.atomic_add(ended_ptr, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(ended_ptr, 0)
    return last


@triton.jit
def _added(parts_ptr, c, C, splits, BC: tl.constexpr):
    """The sum of all parts of channels c, past the cache that does not hear of other programs."""
    s, total = tl.arange(0, _ADDED), tl.zeros([_ADDED, BC], tl.float32)
    for begin in range(0, splits, _ADDED):
        there = ((begin + s) < splits)[:, None] & (c < C)[None, :]
        places = parts_ptr + (begin + s)[:, None] * C + c[None, :]
        total += tl.load(places, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["rows", "splits"])
def moments(
    x_ptr,
    parts_ptr,
    found_ptr,
    ended_ptr,
    rows,
    C,
    eps,
    splits,
    WHOLE: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Sum and sum of squares of each channel over a part of the rows, both of x minus its first row: with that, a mean
    far from 0 costs no precision (an outlier there would cost some). Rows are pixels; parts are (2, splits, C).

    With WHOLE the last program finds mean and 1 / deviation: (2, C).
    """
    split, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    first = tl.load(x_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    each = tl.cdiv(rows, splits)
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
    tl.store(parts_ptr + (splits + split) * C + c, tl.sum(squares, axis=0), mask=c < C)
    if WHOLE:
        last = _is_last(ended_ptr + tl.program_id(1), splits)
        if last:
            off = _added(parts_ptr, c, C, splits, BC) / rows
            variance = _added(parts_ptr + splits * C, c, C, splits, BC) / rows - off * off
            # Not clamped from above: what is not a number stays so, and the divergence is seen.
            tl.store(found_ptr + c, first + off, mask=c < C)
            tl.store(found_ptr + C + c, 1.0 / tl.sqrt(tl.where(variance < 0, 0.0, variance) + eps), mask=c < C)


@triton.jit
def _normal(found_ptr, weight_ptr, bias_ptr, c, C):
    """Mean and 1 / deviation of channels c, and the scale and shift that their norm comes to."""
    mean = tl.load(found_ptr + c, mask=c < C, other=0.0)
    deviation = tl.load(found_ptr + C + c, mask=c < C, other=0.0)
    scale = deviation * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    return mean, deviation, scale, tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale


@triton.jit
def _pixels(x_ptr, q, inside, c, C, H, W, A, B, PH: tl.constexpr, PW: tl.constexpr, a: tl.constexpr, b: tl.constexpr):
    """Pixel (a, b) of windows q, of which each image has A x B."""
    if PH * PW == 1:
        return tl.load(x_ptr + q[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
    i, j = (q // B) % A * PH + a, q % B * PW + b
    places = x_ptr + (((q // (A * B)) * H + i) * W + j)[:, None] * C + c[None, :]
    there = inside & ((i < H) & (j < W))[:, None]
    return tl.load(places, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["windows", "H", "W"])
def normed(
    x_ptr,
    found_ptr,
    weight_ptr,
    bias_ptr,
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
    """max(0, largest of a window of weight (x - mean) / deviation + bias), for every whole window."""
    q, c = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (q < windows)[:, None] & (c < C)[None, :]
    _, _, scale, shift = _normal(found_ptr, weight_ptr, bias_ptr, c, C)
    largest = tl.zeros([BQ, BC], tl.float32)
    for a in tl.static_range(PH):
        for b in tl.static_range(PW):
            x = _pixels(x_ptr, q, inside, c, C, H, W, H // PH, W // PW, PH, PW, a, b)
            y = x * scale[None, :] + shift[None, :]
            largest = tl.maximum(largest, y, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out_ptr + q[:, None] * C + c[None, :], largest.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["windows", "H", "W", "splits"])
def reduced(
    x_ptr,
    found_ptr,
    weight_ptr,
    bias_ptr,
    slope_ptr,
    parts_ptr,
    of_weight_ptr,
    of_bias_ptr,
    ended_ptr,
    windows,
    C,
    H,
    W,
    splits,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BQ: tl.constexpr,
    BC: tl.constexpr,
):
    """The gradients of bias and weight: of the gradient g before the pool, the sums of g and of g (x - mean) /
    deviation. Parts are (2, splits, C)."""
    split, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    mean, deviation, scale, shift = _normal(found_ptr, weight_ptr, bias_ptr, c, C)
    each = tl.cdiv(windows, splits)
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
    tl.store(parts_ptr + split * C + c, tl.sum(total, axis=0), mask=c < C)
    tl.store(parts_ptr + (splits + split) * C + c, tl.sum(products, axis=0), mask=c < C)
    if _is_last(ended_ptr + tl.program_id(1), splits):
        tl.store(of_bias_ptr + c, _added(parts_ptr, c, C, splits, BC), mask=c < C)
        tl.store(of_weight_ptr + c, _added(parts_ptr + splits * C, c, C, splits, BC), mask=c < C)


@triton.jit(do_not_specialize=["windows", "rows", "H", "W"])
def spread(
    x_ptr,
    found_ptr,
    weight_ptr,
    bias_ptr,
    slope_ptr,
    of_weight_ptr,
    of_bias_ptr,
    of_x_ptr,
    windows,
    rows,
    C,
    H,
    W,
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
    mean, deviation, scale, shift = _normal(found_ptr, weight_ptr, bias_ptr, c, C)
    total = tl.load(of_bias_ptr + c, mask=c < C, other=0.0) / rows
    products = tl.load(of_weight_ptr + c, mask=c < C, other=0.0) / rows

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
