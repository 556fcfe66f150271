"""Write the winners of the tuning into the presets of the methods, src/whalefl/configs/TASK/METHOD.toml.

python benchmarks/tuned_presets.py [RESULTS]      # after `whalefl reproduce tuning`

A method that was not tuned takes over the settings of its nested relative; if that was not either, it keeps its preset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomli_w

from whalefl.experiments.additions import TUNED
from whalefl.experiments.protocol import LABELS, SEVEN, Setting
from whalefl.experiments.store import Store
from whalefl.experiments.tuning import Trial, borrowed, preset_of, winner

CONFIGS = Path(__file__).parents[1] / "src" / "whalefl" / "configs"


def main() -> None:
    store = Store(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
    for setting in TUNED:
        for method in SEVEN:
            best, other = winner(store, setting, method), borrowed(store, setting, method)
            if best is not None:
                write(setting, method, best, "as tuned")
            elif other is not None:
                write(setting, method, other, f"not tuned itself but as {LABELS[other.cell.method]} was")


def write(setting: Setting, method: str, best: Trial, how: str) -> None:
    head = f"# {LABELS[method]} on {setting.name}, over the settings of the task, {how} (results/tuning).\n"
    path = CONFIGS / setting.task / f"{method}.toml"
    path.write_text(head + tomli_w.dumps(preset_of(best, method)), encoding="utf8")
    print(f"{LABELS[method]}: {best.cell.label}")


if __name__ == "__main__":
    main()
