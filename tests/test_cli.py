"""The command line as a user meets it: real processes, real folders."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from whalefl.config import compose, read_toml
from whalefl.tasks.digits import digits

WHALEFL = str(Path(sys.executable).parent / "whalefl")
QUICK = ["--set", "training.iterations=1", "--set", "training.batch=4", "--rounds", "2"]


def whalefl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WHALEFL, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; sys.argv = ['whalefl', '--help']\n"
        "from whalefl.cli import main\n"
        "try: main()\n"
        "except SystemExit as exit: assert not exit.code\n"
        "assert not {'torch', 'numpy', 'flwr'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_a_run_leaves_one_complete_folder(tmp_path: Path) -> None:
    done = whalefl("run", "digits", *QUICK, "--seed", "3", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert "repeat with     whalefl run digits" in done.stdout
    folder = tmp_path / "here"
    expected = {"config.toml", "run.json", "metrics.jsonl", "model.safetensors", "report.md", "table.json"}
    assert expected <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    device = lines[1]["devices"][0]
    for key in ("level", "utility", "fisher", "known", "true", "energy", "link", "slowdown"):
        assert key in device
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(w.shape) for name, w in weights.items()} == digits().axes.shapes
    # The folder's own configuration repeats the run.
    again = whalefl("run", "--config", "here/config.toml", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (folder / "metrics.jsonl").read_bytes() == (tmp_path / "again" / "metrics.jsonl").read_bytes()
    assert compose([read_toml(folder / "config.toml")]).seed == 3


def test_compare_pairs_methods_and_seeds_and_repeats_in_any_number_of_processes(tmp_path: Path) -> None:
    arguments = ("compare", "digits", *QUICK, "--methods", "fedavg,whale", "--seeds", "0,1", "--set", "target=0.05")
    for jobs in ("1", "2"):
        done = whalefl(*arguments, "--jobs", jobs, "--out", f"jobs{jobs}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "fedavg" in done.stdout and "speed-up" in done.stdout.replace("\n", "")
    one, two = tmp_path / "jobs1", tmp_path / "jobs2"
    runs = sorted(path.name for path in one.iterdir() if path.is_dir())
    assert runs == ["fedavg-seed0", "fedavg-seed1", "whale-seed0", "whale-seed1"]
    for run in runs:
        assert (one / run / "metrics.jsonl").read_bytes() == (two / run / "metrics.jsonl").read_bytes()
    rows = json.loads((one / "table.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["fedavg", "whale"]
    assert {"accuracy.png", "levels.png", "fisher.png", "report.md"} <= {path.name for path in one.iterdir()}


def test_a_sweep_compares_values(tmp_path: Path) -> None:
    done = whalefl(
        "compare",
        "digits",
        *QUICK,
        "--methods",
        "heterofl",
        "--sweep",
        "weather=calm,rough",
        "--out",
        "w",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "w" / "table.json").read_text())["rows"]
    assert [row["label"] for row in rows] == ["heterofl weather=calm", "heterofl weather=rough"]
    assert rows[0]["time_s"]["value"] < rows[1]["time_s"]["value"]


def test_a_users_own_task_by_module_and_function(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "own_model.py"
    (tmp_path / "own_model.py").write_text(example.read_text(encoding="utf8"), encoding="utf8")
    done = whalefl("run", "own_model:task", *QUICK, "--out", "own", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "model.safetensors").exists()


def trace(path: Path, rates: list[float]) -> str:
    path.write_text("time_s,mbps\n" + "".join(f"{t},{rate}\n" for t, rate in enumerate(rates)))
    return f'fleet.groups=[{{kind="JetsonNano",count=4,trace="{path}"}}]'


MISTAKES = {
    "wrong key": (["--set", "training.lrr=0.1"], ["--set", "training.lr=0.1"], "training.lrr"),
    "wrong type": (["--set", "training.lr=fast"], ["--set", "training.lr=0.1"], "'fast'"),
    "unknown method": (["--method", "wale"], ["--method", "whale"], "'wale'"),
    "sigma too large": (["--set", "partition.sigma=11"], ["--set", "partition.sigma=10"], "sigma is 11"),
    "no devices": (
        ["--set", "fleet.groups=[]"],
        ["--set", 'fleet.groups=[{kind="JetsonNano",count=4}]'],
        "fleet.groups",
    ),
    "unknown option": (["--metod", "whale"], ["--method", "fedavg"], "--metod"),
    "negative rounds": (["--set", "rounds=-1"], ["--set", "rounds=1"], "rounds is -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_its_good_twin_runs(tmp_path: Path, mistake: str) -> None:
    bad, good, named = MISTAKES[mistake]
    check_twins(tmp_path, bad, good, named)


@pytest.mark.parametrize(("rates", "named"), [([0.0, 0.0], "zero throughout"), ([5.0, -1.0], "-1 Mbit/s")])
def test_a_bad_trace_is_one_line_and_its_good_twin_runs(tmp_path: Path, rates: list[float], named: str) -> None:
    bad, good = trace(tmp_path / "bad.csv", rates), trace(tmp_path / "good.csv", [5.0, 0.0, 1.0])
    check_twins(tmp_path, ["--set", bad], ["--set", good], named)


def check_twins(folder: Path, bad: list[str], good: list[str], named: str) -> None:
    failed = whalefl("run", "digits", *QUICK, *bad, "--out", "bad", cwd=folder)
    assert failed.returncode == 2
    assert failed.stdout == "" and "Traceback" not in failed.stderr
    assert failed.stderr.count("\n") == 1 and named in failed.stderr
    assert not (folder / "bad").exists() and not (folder / "runs").exists()
    done = whalefl("run", "digits", *QUICK, *good, "--out", "good", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "good" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "nothing"), "task is 'nothing'"),
        (("run", "no_module:task"), "no_module"),
        (("run", "--config", "none.toml"), "none.toml"),
        (("compare", "--methods", "fedavg,wale"), "'wale'"),
        (("compare", "--seeds", "0,x"), "seeds is '0,x'"),
        (("compare", "--methods", "fedavg,,whale"), "methods"),
        (("compare", "--sweep", "whale.betta=1,2"), "whale.betta"),
        (("compare", "--jobs", "0"), "jobs is 0"),
        (("run", "--set", "task=mnist"), "task must be given"),
        (("compare", "--set", "seed=5"), "seed must be given"),
        (("compare", "--sweep", "target=0.5,0.9"), "target must be given"),
        (("compare", "--sweep", "whale.beta=1,2", "--sweep", "whale.beta=5"), "whale.beta must be swept once"),
        (("run", ":c"), "task is ':c'"),
        (("run", "whalefl.tasks.digits:digits_task_that_is_not_there"), "it must be module:function"),
        (("run", "whalefl.tasks.layers:Classifier"), "which wants features, classes; it must be"),
        (("run", "whalefl.tasks.layers:NORMS"), "NORMS is no function"),
        (("run", "--set", "lr=0.05"), "lr is not a known key; it must be training.lr"),
        (("report", "nowhere"), "'nowhere', which does not exist"),
        (("run", "--set", "fisher.cost=inf"), "fisher.cost is inf"),
        (("run", "--set", "ladder.shrink=1e-300"), "ladder.shrink is 1e-300"),
        (("run", "--out", "/dev/null/run"), "/dev/null/run cannot be used"),
        (("bench", "--out", "/dev/null/cpu.json"), "/dev/null cannot be used"),
        (("walk",), "walk"),
    ],
)
def test_other_mistakes_leave_nothing_behind(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    failed = whalefl(*arguments, cwd=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1 and named in failed.stderr and "Traceback" not in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_divergence_is_one_line_too(tmp_path: Path) -> None:
    failed = whalefl("run", "digits", *QUICK, "--set", "training.lr=1e30", "--out", "far", cwd=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1 and "diverged" in failed.stderr
    assert json.loads((tmp_path / "far" / "run.json").read_text())["status"] == "diverged"


def test_an_occupied_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "precious").write_text("x")
    failed = whalefl("run", "digits", *QUICK, "--out", "here", cwd=tmp_path)
    assert failed.returncode == 2 and "here" in failed.stderr
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["precious"]


def test_version(tmp_path: Path) -> None:
    assert whalefl("--version", cwd=tmp_path).stdout.startswith("whalefl 0.")


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_run_that_diverges_is_named_and_the_others_go_on(tmp_path: Path, jobs: str) -> None:
    runs = ("compare", "digits", *QUICK, "--methods", "heterofl", "--sweep", "training.lr=1e30,0.01")
    done = whalefl(*runs, "--set", "training.clip=0", "--jobs", jobs, "--out", "a b", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert "diverged        heterofl training.lr=1e30, seed 0: training diverged" in done.stdout
    gone, kept = json.loads((tmp_path / "a b" / "table.json").read_text())["rows"]
    assert [row["label"] for row in (gone, kept)] == ["heterofl training.lr=1e30", "heterofl training.lr=0.01"]
    assert (gone["seeds"], gone["reached"], gone["final_accuracy"]) == (1, 0, 0.0) and kept["final_accuracy"] > 0
    assert ": heterofl training.lr=1e30, seed 0: training diverged" in (tmp_path / "a b" / "report.md").read_text()
    command = json.loads((tmp_path / "a b" / "heterofl-training.lr=0.01-seed0" / "run.json").read_text())["command"]
    assert shlex.split(command)[-1] == "a b/heterofl-training.lr=0.01-seed0/config.toml"


def test_a_comparison_refuses_the_settings_of_one_method(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('method = "whale"\n[training]\nlr = 0.03\n')
    failed = whalefl("compare", "--config", "own.toml", "--methods", "fedavg,whale", cwd=tmp_path)
    assert failed.returncode == 2 and "delete its line `method`" in failed.stderr
    done = whalefl("compare", *QUICK, "--config", "own.toml", "--methods", "whale", "--out", "w", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_run_that_is_ended_says_so_in_its_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [WHALEFL, "run", "digits", "--rounds", "5000", "--out", "long"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    metrics = tmp_path / "long" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size:
            break
        time.sleep(0.1)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.decode() == "whalefl: interrupted; to go on: whalefl resume long\n"
    assert json.loads((tmp_path / "long" / "run.json").read_text())["status"] == "interrupted"
