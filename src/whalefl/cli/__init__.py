"""The command line: `main` turns every mistake into one line on stderr and exit code 2."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """The entry point of the `whalefl` command."""
    import typer

    from whalefl.cli.app import app
    from whalefl.errors import WhaleflError

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is ended says so in its folder
    command = typer.main.get_command(app)
    try:
        result = command.main(standalone_mode=False)
    except WhaleflError as error:
        _fail(str(error))
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever reads the output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename} cannot be used: {error.strerror}")
    except Exception as error:
        message = _usage_message(error)
        if message is None:
            raise
        _fail(message)
    sys.exit(result if isinstance(result, int) else 0)


def _usage_message(error: Exception) -> str | None:
    """What is wrong with the words of a command, if that is what the error says."""
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if callable(format_message) else None


def _fail(message: str) -> None:
    print("whalefl: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
