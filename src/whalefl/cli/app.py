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
) -> None:
    """Train with several methods and seeds under the same weather, and leave a table and pictures."""
    from whalefl.cli.compare import compare_methods

    options = {"rounds": rounds, **_places(device, data_dir)}
    compare_methods(task, config, options, methods, seeds, sweep or [], set_ or [], out, jobs)


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
