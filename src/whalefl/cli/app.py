"""The commands and their options; what they do lies in modules that are imported only when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning in which every device chooses, every round, how wide a slice of the model it trains.",
)

Task = Annotated[
    str | None, typer.Argument(help="A task by name (digits, the default), or module:function for one of your own.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file, or the name of a preset, over the task's defaults.")]
Rounds = Annotated[int | None, typer.Option(help="Stop after so many rounds.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value over everything else, e.g. whale.beta=1.")]
Device = Annotated[str | None, typer.Option(help="Where to compute: cpu (the default) or cuda.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets are looked for first.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write; a new one under runs/ if left out.")]
METHODS_HELP = "fedavg, heterofl, feddropout, fedrolex, whale, whaledropout, whalerolex, or EXTRACTION+POLICY"


def _print_version(wanted: bool) -> None:
    if wanted:
        from whalefl import __version__

        typer.echo(f"whalefl {__version__}")
        raise typer.Exit


@app.callback()
def whalefl(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _places(device: str | None, data_dir: Path | None) -> dict[str, str | None]:
    return {"device": device, "data_dir": None if data_dir is None else str(data_dir)}


@app.command()
def run(
    task: Task = None,
    config: Config = None,
    method: Annotated[str | None, typer.Option(help=f"The method: {METHODS_HELP}.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything that is drawn.")] = None,
    set_: Set = None,
    device: Device = None,
    data_dir: DataDir = None,
    out: Out = None,
) -> None:
    """Train one model with one method and leave a run folder."""
    from whalefl.cli.run import run_one

    options = {"method": method, "rounds": rounds, "seed": seed, **_places(device, data_dir)}
    run_one(task, config, options, set_ or [], out)


@app.command()
def compare(
    task: Task = None,
    config: Config = None,
    methods: Annotated[
        str, typer.Option(help=f"Methods, the reference first: {METHODS_HELP}.")
    ] = "fedavg,heterofl,whale",
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated; every method meets the same weather.")] = "0",
    sweep: Annotated[
        list[str] | None, typer.Option(help="key=a,b,...: every method with each of these values.")
    ] = None,
    set_: Set = None,
    device: Device = None,
    data_dir: DataDir = None,
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; one for each core if left out.")] = None,
    together: Annotated[int, typer.Option(help="Runs that train alike and share a process, for a GPU.")] = 1,
) -> None:
    """Train with several methods and seeds under the same weather, and leave a table and pictures."""
    from whalefl.cli.compare import compare_methods

    options = {"rounds": rounds, **_places(device, data_dir)}
    compare_methods(task, config, options, methods, seeds, sweep or [], set_ or [], out, jobs, together)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison that was interrupted.")],
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; one for each core if left out.")] = None,
    together: Annotated[int, typer.Option(help="Runs that train alike and share a process, for a GPU.")] = 1,
) -> None:
    """Go on with what was interrupted, from the last round that was put down."""
    from whalefl.cli.resume import resume as go_on

    go_on(folder, jobs, together)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run or of a comparison.")]) -> None:
    """Write and show the report on a run or a comparison, however far it is."""
    from whalefl.cli.resume import report as show

    show(folder)


@app.command()
def bench(
    scenario: Annotated[
        str | None, typer.Option(help="Rounds to measure, e.g. mixed,full,narrow; all of them if left out.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(help="Ways to train them, e.g. plain-loop,plain,workers,workers-bf16; all of them if left out."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Counted repeats; one more warms up.")] = 5,
    iterations: Annotated[int | None, typer.Option(help="Mini-batches of a client in a round, instead of 10.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Measure memory instead of time.")] = False,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="The JSON file; one under runs/bench/ if left out.")] = None,
) -> None:
    """Measure how fast rounds are against the ordinary loop and the hardware's floor, on random images."""
    from whalefl.cli.bench import bench_memory, bench_speed

    if memory:
        bench_memory(variants, out)
    else:
        bench_speed(device or "cpu", scenario, variants, repeats, iterations, out)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table1, table2, table3, task_perf, fisher, ablation, sensitivity, heterogeneity, theorem, controls, "
            "weathers, tuning, or all (all but tuning)."
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Only print the runs, the most worthwhile first.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing; only write the pages.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs side by side.")] = 1,
    together: Annotated[int, typer.Option(help="Runs that train alike and share a process, for a GPU.")] = 1,
    time_limit: Annotated[
        float | None, typer.Option(help="Start no run that is not expected to end within so many seconds from now.")
    ] = None,
    only_tasks: Annotated[str | None, typer.Option(help="Tasks, comma-separated; all if left out.")] = None,
    only_methods: Annotated[str | None, typer.Option(help="Methods, comma-separated; all if left out.")] = None,
    seeds: Annotated[int | None, typer.Option(help="The first so many seeds only.")] = None,
    device: Device = None,
    data_dir: DataDir = None,
    results: Annotated[Path, typer.Option(help="Where pages and compact metrics are.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Where the full run folders go.")] = Path("runs/reproduce"),
    claims: Annotated[Path | None, typer.Option(help="Also write what the paper's claims come to, here.")] = None,
    readme: Annotated[Path | None, typer.Option(help="Also refresh the headline section of this page.")] = None,
    commit: Annotated[str | None, typer.Option(help="The commit to note; asked of git if left out.")] = None,
) -> None:
    """Reproduce a table or figure of the paper: make the runs that are missing, then its page under results/."""
    from whalefl.cli.reproduce import Options, reproduce_study

    options = Options(
        results,
        work,
        claims,
        readme,
        device,
        data_dir,
        only_tasks,
        only_methods,
        seeds,
        jobs,
        together,
        time_limit,
        commit,
    )
    reproduce_study(name, options, plan, report_only)


data = typer.Typer(no_args_is_help=True, help="The data sets: what is there, and how to get the rest.")
app.add_typer(data, name="data")


@data.command("list")
def list_command(data_dir: DataDir = None) -> None:
    """Say which data sets are there, and where."""
    from whalefl.cli.data import list_data

    list_data(data_dir)


@data.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="mnist, cifar10, wikitext2 or har.")], data_dir: DataDir = None
) -> None:
    """Download the official files of a data set and check them."""
    from whalefl.cli.data import fetch_data

    fetch_data(name, data_dir)


deploy = typer.Typer(no_args_is_help=True, help="A real federation over several machines, on Flower.")
app.add_typer(deploy, name="deploy")


@deploy.command("init")
def deploy_init(
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    host: Annotated[str, typer.Option(help="The name or address under which devices reach the server.")],
    task: Annotated[str | None, typer.Option(help="A task by name, or module:function for one of your own.")] = None,
    config: Config = None,
    method: Annotated[str | None, typer.Option(help=f"The method: {METHODS_HELP}.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything that is drawn.")] = None,
    devices: Annotated[int | None, typer.Option(help="How many devices, instead of the fleet in the config.")] = None,
    port: Annotated[int, typer.Option(help="The server's port; the next one is used on that machine only.")] = 9443,
    set_: Set = None,
    data_dir: DataDir = None,
) -> None:
    """Make certificates, keys and folders for a server and its devices."""
    from whalefl.cli.deploy import init

    options = {"method": method, "rounds": rounds, "seed": seed, **_places(None, data_dir)}
    init(task, config, set_ or [], options, devices, host, port, out)


@deploy.command("server")
def deploy_server(folder: Annotated[Path, typer.Argument(help="The server's folder.")]) -> None:
    """Serve until all rounds are done; started again, it goes on after the last finished round."""
    from whalefl.cli.deploy import server

    server(folder)


@deploy.command("device")
def deploy_device(folder: Annotated[Path, typer.Argument(help="The device's folder.")]) -> None:
    """Be a device until stopped; whatever dies is started again."""
    from whalefl.cli.deploy import device

    device(folder)


@deploy.command("status")
def deploy_status(folder: Annotated[Path, typer.Argument(help="The server's folder.")]) -> None:
    """Say where a federation stands."""
    from whalefl.cli.deploy import status

    status(folder)


@app.command()
def testbed(
    task: Task = None,
    config: Config = None,
    methods: Annotated[str, typer.Option(help=f"Methods, run in turn: {METHODS_HELP}.")] = "fedavg,heterofl,whale",
    cores: Annotated[
        str, typer.Option(help="The devices, by the share of a processor core each has.")
    ] = "0.6,0.4,0.3,0.2",
    repeats: Annotated[int, typer.Option(help="How often each method is run.")] = 1,
    gauge_rounds: Annotated[int, typer.Option(help="Rounds in which devices are measured first.")] = 8,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything that is drawn.")] = None,
    set_: Set = None,
    data_dir: DataDir = None,
    out: Out = None,
    empty: Annotated[int | None, typer.Option(help="Only measure so many rounds with nothing in them.")] = None,
) -> None:
    """Run a real federation in network namespaces on this machine (Linux, root), beside the simulator's prediction."""
    from whalefl.cli import testbed as bed

    if empty is not None:
        bed.empty_rounds(empty)
        return
    options = {"rounds": rounds, "seed": seed, **_places(None, data_dir)}
    bed.testbed(task, config, set_ or [], options, methods, cores, repeats, gauge_rounds, out)
