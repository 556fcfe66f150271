"""The numbers that the paper states, by task and method; figures without printed numbers are not read off."""

from __future__ import annotations

SPEEDUP_OVER_PEER = {
    "mnist": {"whale": 1.74, "whalerolex": 1.75, "whaledropout": 1.70},
    "cifar10": {"whale": 1.25, "whalerolex": 1.32, "whaledropout": 1.24},
    "wikitext2": {"whale": 1.21, "whalerolex": 1.24, "whaledropout": 1.20},
    "har": {"whale": 1.06, "whalerolex": 1.10, "whaledropout": 1.05},
}
"""Table 1: how many times sooner than the fixed method with the same extraction."""

FINAL_ACCURACY = {
    "mnist": {
        "fedavg": 0.9271,
        "heterofl": 0.8742,
        "whale": 0.8929,
        "fedrolex": 0.8782,
        "whalerolex": 0.8987,
        "feddropout": 0.8616,
        "whaledropout": 0.8752,
    },
    "cifar10": {
        "fedavg": 0.8061,
        "heterofl": 0.7165,
        "whale": 0.7532,
        "fedrolex": 0.7252,
        "whalerolex": 0.7957,
        "feddropout": 0.7008,
        "whaledropout": 0.7345,
    },
    "wikitext2": {
        "fedavg": 0.4054,
        "heterofl": 0.3740,
        "whale": 0.3928,
        "fedrolex": 0.3802,
        "whalerolex": 0.3966,
        "feddropout": 0.3719,
        "whaledropout": 0.3906,
    },
    "har": {
        "fedavg": 0.9294,
        "heterofl": 0.8886,
        "whale": 0.9138,
        "fedrolex": 0.8911,
        "whalerolex": 0.9203,
        "feddropout": 0.8825,
        "whaledropout": 0.8955,
    },
}
"""Table 2. Its last row says FedDropout => WHALERolex; it must mean WHALEDropout."""

HOURS = {
    2: {
        "fedavg": 1.12,
        "heterofl": 1.06,
        "whale": 0.61,
        "feddropout": 1.09,
        "whaledropout": 0.64,
        "fedrolex": 1.03,
        "whalerolex": 0.59,
    },
    5: {
        "fedavg": 0.33,
        "heterofl": 0.26,
        "whale": 0.19,
        "feddropout": 0.28,
        "whaledropout": 0.21,
        "fedrolex": 0.25,
        "whalerolex": 0.18,
    },
    10: {
        "fedavg": 0.30,
        "heterofl": 0.10,
        "whale": 0.08,
        "feddropout": 0.11,
        "whaledropout": 0.08,
        "fedrolex": 0.10,
        "whalerolex": 0.07,
    },
}
"""Table 3: hours to 85, 90 and 95 % on CNN@MNIST, by the classes of a device."""

SPEEDUP_OVER_FEDAVG_BY_SIGMA = {
    2: {
        "fedavg": 1.00,
        "heterofl": 1.06,
        "whale": 1.84,
        "feddropout": 1.03,
        "whaledropout": 1.75,
        "fedrolex": 1.09,
        "whalerolex": 1.90,
    },
    5: {
        "fedavg": 1.00,
        "heterofl": 1.27,
        "whale": 1.74,
        "feddropout": 1.18,
        "whaledropout": 1.57,
        "fedrolex": 1.32,
        "whalerolex": 1.83,
    },
    10: {
        "fedavg": 1.00,
        "heterofl": 3.00,
        "whale": 3.75,
        "feddropout": 2.73,
        "whaledropout": 3.75,
        "fedrolex": 3.00,
        "whalerolex": 4.29,
    },
}
"""Table 3, the figures in brackets."""

SPEEDUP_OVER_FEDAVG = {"mnist": 1.5, "cifar10": 1.9, "wikitext2": 1.3, "har": 2.1}
"""The text on the figure of accuracies over time; for MNIST it differs from Table 3's 1.84."""
