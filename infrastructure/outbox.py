"""What an outbox is: the module of a folder of the domain that says what the world is told of its events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from domain.base import DomainEvent
from domain.contracts import Contract
from domain.errors import CounterfoilError
from infrastructure.by_name import module_or_problem

EventIdOf = Callable[[type[Contract]], str]
ToContracts = Callable[[DomainEvent, EventIdOf], Sequence[Contract]]


@dataclass(eq=False)
class OutboxNotFound(CounterfoilError):
    """There is no outbox of this name. What to do: check the name; `problem` says what is missing."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name!r} has no outbox: {self.problem}. Name a folder of the domain, such as domain.orders."


@dataclass(eq=False)
class ContractUndescribed(CounterfoilError):
    """A contract does not say of itself what others must know before it is published.

    missing: class attributes, or `docstring`. What to do: declare them in its class.
    """

    contract: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"The contract {self.contract} lacks {', '.join(self.missing)}. See docs/new-aggregate.md."


@dataclass(frozen=True)
class Outbox:
    """name: of the folder. contracts: all that it can publish. to_contracts: what one event becomes, maybe nothing."""

    name: str
    contracts: tuple[type[Contract], ...]
    to_contracts: ToContracts


def load_outbox(name: str) -> Outbox:
    """The outbox of a folder by convention: `domain.orders` has its in the module `domain.orders.outbox`.

    The module has `CONTRACTS`, the contract classes, and `to_contracts(event, event_id)`.
    Raises OutboxNotFound, ContractUndescribed; what goes wrong inside the module comes through unchanged.
    """
    module_name = f"{name}.outbox"
    module = module_or_problem(module_name)
    if isinstance(module, str):
        raise OutboxNotFound(name, module)
    contracts, to_contracts = getattr(module, "CONTRACTS", None), getattr(module, "to_contracts", None)
    if not contracts or not all(isinstance(each, type) and issubclass(each, Contract) for each in contracts):
        raise OutboxNotFound(name, f"{module_name} has no CONTRACTS, the contract classes it publishes")
    if not callable(to_contracts):
        raise OutboxNotFound(name, f"{module_name} has no function to_contracts(event, event_id)")
    for contract in contracts:
        if missing := contract.undescribed():
            raise ContractUndescribed(contract.__name__, missing)
    return Outbox(name, tuple(contracts), to_contracts)
