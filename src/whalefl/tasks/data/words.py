"""Text into numbers: words as they come, one `<eos>` for each line, and where the articles begin."""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from whalefl.tasks.data.datasets import Arrays

EOS = "<eos>"


def encode(train: str, valid: str, test: str) -> Arrays:
    """The three splits as token numbers; words are numbered by first appearance over train, valid, test."""
    splits = {"train": _words(train), "valid": _words(valid), "test": _words(test)}
    numbers = {word: number for number, word in enumerate(dict.fromkeys(chain.from_iterable(splits.values())))}
    arrays: Arrays = {
        f"tokens_{split}": np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
        for split, words in splits.items()
    }
    arrays["vocab"] = np.frombuffer("\n".join(numbers).encode(), np.uint8).copy()
    arrays["articles_train"] = _articles(arrays["tokens_train"], numbers.get("=", -1), numbers.get(EOS, -1))
    return arrays


def vocabulary(arrays: Arrays) -> list[str]:
    """The words, each at the place of its number."""
    return arrays["vocab"].tobytes().decode().split("\n")


def _words(text: str) -> list[str]:
    if text and not text.endswith("\n"):
        text += "\n"
    return text.replace("\n", f" {EOS} ").split()


def _articles(tokens: NDArray[np.int32], equals: int, eos: int) -> NDArray[np.int64]:
    """The offsets of the lines ` = Title = ` with an empty line on both sides.

    The empty lines tell a title from a line like ` = Played , W = ` in the legend of a table.
    """
    ends = np.flatnonzero(tokens == eos)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    empty = np.concatenate([[True], starts == ends, [True]])
    lines = np.flatnonzero(empty[:-2] & empty[2:] & (ends - starts >= 3))
    start, end = starts[lines], ends[lines]
    title = (tokens[start] == equals) & (tokens[start + 1] != equals)
    title &= (tokens[end - 1] == equals) & (tokens[end - 2] != equals)
    offsets: NDArray[np.int64] = start[title].astype(np.int64)
    return offsets
