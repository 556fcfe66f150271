"""Write docs/configuration.md: every setting with its default.

python benchmarks/configuration_page.py
"""

from __future__ import annotations

from pathlib import Path

from whalefl.config import Experiment, to_toml

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

TEXT = """# Every setting, with its default

A setting is given as `--set key=value` (keys dotted, e.g. `training.lr=0.05`), or in a TOML file with `--config`. Over
these defaults lie the presets of the task and of the method on it; `config.toml` in a run folder holds what a run used.
A file that names its `task` stands for itself: no presets lie under it. The keys of a real federation (`federation.*`)
are in [deployment.md](deployment.md#what-may-be-agreed-on).

```toml
{defaults}
```

Settings without a default, which are off unless given:

| key | meaning |
|---|---|
| `target` | the test accuracy to reach, between 0 and 1 |
| `horizon_s` | end with the first round that ends after so many virtual seconds (in a federation: real ones) |
| `clients_per_round` | select so many devices at random every round, instead of all |
| `training.epochs` | passes over a device's data in a round, instead of `training.iterations` |
| `data_dir` | where data sets are looked for first |
| `seeds.training`, `.weights`, `.partition`, `.assignment`, `.weather` | one source of chance apart from `seed` |
| `fleet.groups[].fixed_level` | the level a fixed policy gives the group, instead of its kind's |
| `fleet.groups[].power_w`, `.memory_mb` | instead of its kind's |
| `fleet.groups[].curve` | pairs of FLOPs and seconds a sample that replace its kind's measured times |
| `fleet.groups[].trace` | a CSV file `time_s,mbps` that replaces the weather's links |
| `replay.file` | the levels that the policy `replay` hands out: one line a round, one character a device |

Choices: `partition.kind` sigma, iid, dirichlet, groups, contiguous; `norm` batch, group; `engine` auto, plain, workers,
graphs; `precision` fp32, tf32, bf16; `training.schedule` constant, cosine; `latency.knowledge` oracle, last, ewma;
`aggregation.weighting` devices, samples; `whale.parts` both, system, training; `whale.preferred_s` and
`whale.threshold` a number or auto; `whale.se_reference` unit, full; `whale.fisher` trace, unit, mean; `weather` a table
or one of default, calm, rough; `evaluation.on` test, validation; `replay.order` permuted, drawn; `wait_for` is the
share of a round's devices that the server waits for.
What each one does is said where it is defined: {places}.
"""

PLACES = {
    "training": "federation/training.py",
    "fisher": "scheduling/fisher.py",
    "whale": "scheduling/policies.py",
    "replay": "scheduling/replay.py",
    "fleet": "fleet/devices.py",
    "weather": "fleet/weather.py",
    "latency": "fleet/latency.py",
    "partition": "tasks/partition.py",
    "aggregation": "federation/rounds.py",
    "evaluation": "federation/evaluation.py",
}


def main() -> None:
    places = ", ".join(f"`{table}` in [{path}](../src/whalefl/{path})" for table, path in PLACES.items())
    PAGE.write_text(TEXT.format(defaults=to_toml(Experiment()).strip(), places=places), encoding="utf8")


if __name__ == "__main__":
    main()
