"""All studies by name: what `whalefl reproduce` knows."""

from __future__ import annotations

from whalefl.experiments.additions import CONTROLS, TUNING, WEATHERS
from whalefl.experiments.published import (
    ABLATION,
    FISHER,
    HETEROGENEITY,
    SENSITIVITY,
    TABLE1,
    TABLE2,
    TABLE3,
    TASK_PERF,
    THEOREM,
)

STUDIES = {
    study.name: study
    for study in (
        TABLE1,
        TABLE2,
        TABLE3,
        TASK_PERF,
        FISHER,
        ABLATION,
        SENSITIVITY,
        HETEROGENEITY,
        THEOREM,
        CONTROLS,
        WEATHERS,
        TUNING,
    )
}

REPORTED = tuple(study for study in STUDIES.values() if study is not TUNING)
