"""`nyala master set_log_level` and `nyala tserver set_log_level`."""

from typing import TYPE_CHECKING, Annotated

import typer

from nyala.cli.output import say, stays, verb

if TYPE_CHECKING:
    from nyala.env.env import Env

Address = Annotated[str, typer.Argument(help="Public address of the server.")]
Level = Annotated[str, typer.Argument(help="DEBUG, INFO, WARNING or ERROR.")]
Logger = Annotated[str, typer.Option("--logger", help="Logger, with those below it.")]
ASK_MS = 10_000


def register(*groups: typer.Typer) -> None:
    """Add the command to `nyala master` and `nyala tserver`."""
    for group in groups:
        group.command("set_log_level")(set_log_level)


@verb
@stays("the level may have been changed: run the command again")
def set_log_level(server: Address, level: Level, logger: Logger = "nyala") -> None:
    """Set the level of a running server's log until it is restarted."""
    from nyala.operate.run import run_alone
    from nyala.wire import methods
    from nyala.wire.proto import nyala_pb2 as pb

    async def work(env: "Env") -> str:
        request = pb.SetLogLevelRequest(name=logger, level=level)
        answer = await env.rpc.call(server, methods.SET_LOG_LEVEL, request, timeout_ms=ASK_MS)
        return str(answer.previous)

    say(f"the level of {logger} on {server} is {level.upper()}; it was {run_alone(work, server)}")
