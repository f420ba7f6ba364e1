"""Commands of typer with subcommands and without repeated options of one value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from gradtide.cli.ends import UsageError

# From click, which typer imports or contains, depending on its version.
Command: Any = next(cls for cls in TyperGroup.__mro__ if cls.__name__ == "Command")


class Once:
    """Mix-in of commands that refuses a repeated option of one value, of which typer would take the last.

    Options that collect values (`--set`), and flags, may be given several times.
    """

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that refuses it."""
        parser = super().make_parser(ctx)  # type: ignore[misc]
        parse_args = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            opts, rest, order = parse_args(args)
            for number, param in enumerate(order):
                is_single = param.param_type_name == "option" and not (param.multiple or param.is_flag or param.count)
                if is_single and param in order[:number]:
                    names = "/".join(sorted(param.opts, key=len))
                    raise UsageError(f"{names} is given twice; leave one of the two out", max(param.opts, key=len))
            return opts, rest, order

        parser.parse_args = parse_once
        return parser


class OneCommand(Once, TyperCommand):
    """A command without subcommands."""


class CommandWithSubcommands(Once, TyperGroup):
    """A command that has subcommands as well: `tenants SCENARIO` and `tenants map SCENARIO`."""

    allow_extra_args = False
    allow_interspersed_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass the arguments to the subcommand named by the first one; otherwise read the options of the command."""
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

        For shell completion the first argument may be a subcommand.
        """
        if ctx.command is not self:
            return []
        params = Command.get_params(self, ctx)
        return [param for param in params if not (ctx.resilient_parsing and param.param_type_name == "argument")]
