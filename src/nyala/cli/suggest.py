"""Suggestions for an unknown command: the group whose plural it is, or groups with a command of that name."""

from typing import Any

from typer.core import TyperGroup


class Tree(TyperGroup):
    """Root of the command line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command for the arguments; the error of an unknown one names the groups that have it."""
        if args and args[0] not in self.commands:
            found = self._lists(ctx, args[0]) or [
                f"'{ctx.command_path} {name} {args[0]}'"
                for name, command in self.commands.items()
                if isinstance(command, TyperGroup) and args[0] in command.commands
            ]
            if found:
                ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(found)}?")
        return super().resolve_command(ctx, args)

    def _lists(self, ctx: Any, word: str) -> list[str]:
        """Return the command that lists what a group is about, if the word is the plural of its name."""
        group = self.commands.get(word.removesuffix("s")) if word.endswith("s") else None
        listing = isinstance(group, TyperGroup) and "list" in group.commands
        return [f"'{ctx.command_path} {word[:-1]} list'"] if listing else []
