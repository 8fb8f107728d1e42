"""`python -m pecia_workers worker ROLE`: how the supervisor starts its processes, without the client's command."""

import typer

from pecia_workers.commands.doctor import doctor
from pecia_workers.commands.engine import engine
from pecia_workers.commands.worker import flower, worker

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(worker)
app.command()(doctor)
app.command()(flower)
app.add_typer(engine, name="engine")

if __name__ == "__main__":
    app()
