"""A word that is no verb: where the verb of that name is, if some group has it."""

from typing import Any

from typer.core import TyperGroup


class Tree(TyperGroup):
    """The root of the command line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the words name; a verb of a group is told with its group."""
        if args and args[0] not in self.commands:
            found = [
                f"'{ctx.command_path} {name} {args[0]}'"
                for name, command in self.commands.items()
                if isinstance(command, TyperGroup) and args[0] in command.commands
            ]
            if found:
                ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(found)}?")
        return super().resolve_command(ctx, args)
