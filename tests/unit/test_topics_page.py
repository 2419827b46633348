"""docs/topics.md is what the contracts say, and a contract that says too little is refused before it is published."""

import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal

import pytest

from counterfoil.topics_page import all_contracts, consumers_of, topics_page
from domain.contracts import Contract
from domain.orders.public_contracts import OrderPlaced
from infrastructure.outbox import ContractUndescribed, load_outbox
from projections.inventory.projection import PROJECTION

PAGE = Path(__file__).parents[2] / "docs/topics.md"


class Described(Contract):
    """Something happened. Version 1."""

    topic: ClassVar[str] = "things.happened.v1"
    keyed_by: ClassVar[str] = "thing_id"
    owner: ClassVar[str] = "things"

    event_type: Literal["Happened"]
    schema_version: Literal[1]
    thing_id: str


def test_the_page_is_what_the_contracts_say() -> None:
    assert PAGE.read_text() == topics_page(), "run: counterfoil contracts --markdown > docs/topics.md"


def test_it_tells_of_every_contract_that_an_outbox_publishes() -> None:
    page = topics_page()
    assert OrderPlaced in all_contracts()
    for contract in all_contracts():
        assert f"## `{contract.topic}`" in page


def test_projections_are_known_as_consumers_by_themselves_and_others_by_what_the_contract_says() -> None:
    assert PROJECTION.consumer_name in consumers_of(OrderPlaced)

    class ReadElsewhere(Described):
        consumers: ClassVar[tuple[str, ...]] = ("the warehouse",)

    assert consumers_of(ReadElsewhere) == ["the warehouse"]


def test_a_described_contract_has_its_field_as_its_key() -> None:
    assert Described.undescribed() == ()
    happened = Described.model_validate_json(
        '{"eventId":"e","eventType":"Happened","schemaVersion":1,"occurredAt":"2026-01-01T00:00:00Z","thingId":"t"}'
    )
    assert happened.key == "t"


class WithoutOwner(Described):
    """Says nothing of its owner."""

    owner: ClassVar[str] = ""


class KeyedByNothing(Described):
    """Names a field that it does not have."""

    keyed_by: ClassVar[str] = "thing"


class WithoutDocstring(Described):
    pass


class Bare(Contract):
    event_type: Literal["Bare"]
    schema_version: Literal[1]


@pytest.mark.parametrize(
    ("contract", "missing"),
    [
        (WithoutOwner, ("owner",)),
        (KeyedByNothing, ("keyed_by",)),
        (WithoutDocstring, ("docstring",)),
        (Bare, ("topic", "keyed_by", "owner", "docstring")),
    ],
)
def test_a_contract_that_says_too_little_is_refused_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, contract: type[Contract], missing: tuple[str, ...]
) -> None:
    module = ModuleType("things.outbox")
    vars(module).update({"CONTRACTS": (contract,), "to_contracts": print})
    monkeypatch.setitem(sys.modules, "things", ModuleType("things"))
    monkeypatch.setitem(sys.modules, "things.outbox", module)

    with pytest.raises(ContractUndescribed) as refused:
        load_outbox("things")

    assert refused.value.missing == missing
    assert contract.__name__ in str(refused.value)
