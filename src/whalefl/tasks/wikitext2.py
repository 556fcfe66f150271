"""WikiText-2: articles of Wikipedia, and a Transformer that guesses the words hidden from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from whalefl.rng import stream
from whalefl.tasks.data.datasets import Arrays
from whalefl.tasks.data.store import load
from whalefl.tasks.data.words import vocabulary
from whalefl.tasks.task import Augmentation, Examples, Task
from whalefl.tasks.transformer import Sizes, Transformer, transformer_axes

LENGTH = 64
HIDDEN_SHARE = 0.15


def wikitext2(data_dir: Path | None = None) -> Task:
    """32,634 sequences of 64 words to train on and 3,837 to test on, over a vocabulary of 33,278 words."""
    data = load("wikitext2", data_dir)
    return wikitext2_task(data.arrays, data.notes)


def wikitext2_task(arrays: Arrays, notes: tuple[str, ...] = ()) -> Task:
    """The task over any numbered words. The targets are all words of a sequence, the hidden ones among them.

    In training other words are hidden every time; in testing always the same ones.
    """
    words = len(vocabulary(arrays))
    sizes = Sizes(words, LENGTH)
    train, test = sequences(arrays["tokens_train"]), sequences(arrays["tokens_test"])
    hidden = stream(0, "wikitext2 test").random(test.shape) < HIDDEN_SHARE
    return Task(
        name="wikitext2",
        axes=transformer_axes(sizes),
        build=lambda shape: Transformer(shape, sizes),
        train=Examples(torch.tensor(train), torch.tensor(train, dtype=torch.int64)),
        test=Examples(torch.tensor(np.where(hidden, np.int32(words), test)), torch.tensor(test, dtype=torch.int64)),
        classes=words,
        prepare=lambda tokens: tokens.long(),
        augment=Augmentation(LENGTH, lambda tokens, uniforms: tokens.masked_fill(uniforms < HIDDEN_SHARE, words)),
        masked=lambda tokens: tokens == words,
        groups=articles(arrays["articles_train"], len(train)),
        notes=notes,
    )


def sequences(tokens: NDArray[Any]) -> NDArray[np.int32]:
    """All full sequences, one after the other; what is left at the end is dropped."""
    count = len(tokens) // LENGTH
    return tokens[: count * LENGTH].reshape(count, LENGTH).astype(np.int32)


def articles(starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The article in which each of the first `count` sequences begins."""
    found = np.searchsorted(starts, LENGTH * np.arange(count), side="right") - 1
    # What stands before the first title belongs to the first article.
    return np.maximum(found, 0).astype(np.int64)
