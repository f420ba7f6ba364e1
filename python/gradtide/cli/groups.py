"""A command that has subcommands of its own."""

from typing import Any

from typer.core import TyperGroup

# Of click, which typer imports or contains, depending on its version.
Command: Any = next(cls for cls in TyperGroup.__mro__ if cls.__name__ == "Command")


class CommandWithSubcommands(TyperGroup):
    """A command that has subcommands as well: `tenants SCENARIO` and `tenants map SCENARIO`."""

    allow_extra_args = False
    allow_interspersed_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave everything to the subcommand that the first argument names; else read the options of the command."""
        if not args or args[0] not in self.commands:
            parsed: list[str] = Command.parse_args(self, ctx, args)
            return parsed
        ctx.invoked_subcommand = args[0]
        ctx.args = args
        return args

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand, or the command itself."""
        if ctx.invoked_subcommand is None:
            return Command.invoke(self, ctx)
        name, *args = ctx.args
        subcommand = self.commands[name]
        with subcommand.make_context(name, args, parent=ctx) as inner:
            return subcommand.invoke(inner)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage of the command itself; its subcommands stand below its options."""
        pieces: list[str] = Command.collect_usage_pieces(self, ctx)
        return pieces

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; a subcommand, whose usage begins with those of its parent, sees none.

        To the shell, which completes what is typed, the first argument may be a subcommand.
        """
        if ctx.command is not self:
            return []
        params = Command.get_params(self, ctx)
        return [param for param in params if not (ctx.resilient_parsing and param.param_type_name == "argument")]
