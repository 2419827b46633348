"""Groups of commands with one that need not be named."""

from typing import Any

from typer.core import TyperGroup


class RunUnlessTold(TyperGroup):
    """`relay domain.orders` is short for `relay run domain.orders`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            args = ["run", *args]
        return super().resolve_command(ctx, args)
