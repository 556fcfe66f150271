"""Write the winners of the tuning into the presets of the methods, src/whalefl/configs/TASK/METHOD.toml.

python benchmarks/tuned_presets.py [RESULTS]      # after `whalefl reproduce tuning`

A method without a winner keeps its preset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomli_w

from whalefl.experiments.additions import TUNED
from whalefl.experiments.protocol import LABELS, SEVEN
from whalefl.experiments.store import Store
from whalefl.experiments.tuning import preset_of, winner

CONFIGS = Path(__file__).parents[1] / "src" / "whalefl" / "configs"


def main() -> None:
    store = Store(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
    for setting in TUNED:
        for method in SEVEN:
            best = winner(store, setting, method)
            if best is not None:
                head = (
                    f"# {LABELS[method]} on {setting.name}, over the settings of the task, as tuned (results/tuning).\n"
                )
                path = CONFIGS / setting.task / f"{method}.toml"
                path.write_text(head + tomli_w.dumps(preset_of(best)), encoding="utf8")
                print(best.cell.label)


if __name__ == "__main__":
    main()
