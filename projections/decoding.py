"""From a record's bytes to a contract, or to the reason why not. No bytes make it raise."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError
from pydantic_core import from_json

from domain.contracts import Contract
from domain.errors import problems_of
from domain.strict_json import has_each_name_once, repeated_names
from infrastructure.record import Record


class Category(StrEnum):
    """Why a record is in quarantine. A metric label: few, and ours."""

    NO_VALUE = "no_value"
    NOT_JSON = "not_json"
    CONTRACT = "contract"
    VERSION = "version"
    KEY = "key"
    REFUSED = "refused"
    """The handler answered that it can never be applied."""
    HANDLER = "handler"
    """The handler failed each time."""
    TOO_OLD = "too_old"
    """The inbox does not remember so far back: nobody can tell whether it was applied."""
    FOLLOWER = "follower"
    """Nothing is wrong with it: an earlier event of its key is in quarantine."""


@dataclass(frozen=True)
class Decoded:
    contract: Contract


@dataclass(frozen=True)
class Ignored:
    """JSON of an event type that the projection does not handle: nothing is wrong with it."""

    event_type: str


@dataclass(frozen=True)
class Faulty:
    """A record that cannot be applied as it is. reason: names fields and rules, never a value."""

    category: Category
    reason: str
    event_id: str | None = None


class Decoder:
    """Reads the records of one projection.

    What is asked, in this order: is there JSON; does the type concern us; do we know this version of it;
    is it the contract, strictly; is the key the contract's. So a type that others added to the topic is
    ignored whatever its fields are, and an unknown version is never read as one we know.
    """

    def __init__(self, contracts: Iterable[type[Contract]]) -> None:
        self._known: dict[str, dict[int, type[Contract]]] = {}
        for contract in contracts:
            self._known.setdefault(contract.contract_type(), {})[contract.contract_version()] = contract

    def decode(self, record: Record) -> Decoded | Ignored | Faulty:
        if record.value is None:
            return Faulty(Category.NO_VALUE, "value: there is none")
        try:
            return self._decode(record.key, record.value)
        except Exception as error:  # noqa: BLE001  whatever it was, the next record must be read
            return Faulty(Category.CONTRACT, f"value: decoding failed with {type(error).__name__}")

    def _decode(self, key: bytes | None, value: bytes) -> Decoded | Ignored | Faulty:
        try:
            fields = from_json(value, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            return Faulty(Category.NOT_JSON, f"value: not JSON: {error}")
        event_type = fields.get("eventType") if isinstance(fields, dict) else None
        if not isinstance(event_type, str):
            return Faulty(Category.CONTRACT, "value: must be a JSON object with an eventType")
        if event_type not in self._known:
            return Ignored(event_type)
        contract = self._contract_of(event_type, fields.get("schemaVersion"))
        if isinstance(contract, Faulty):
            return contract
        if not has_each_name_once(value, fields) and (names := repeated_names(value)):
            return Faulty(Category.CONTRACT, f"value: {names} field names occur twice in one object")
        return _strictly(contract, key, value)

    def _contract_of(self, event_type: str, version: object) -> type[Contract] | Faulty:
        known = self._known[event_type]
        # Compared by type too: true and 1.0 are equal to 1.
        if type(version) is not int or version not in known:
            known_versions = ", ".join(map(str, sorted(known)))
            return Faulty(Category.VERSION, f"schemaVersion: must be an integer, one of {known_versions}")
        return known[version]


def _strictly(contract_class: type[Contract], key: bytes | None, value: bytes) -> Decoded | Faulty:
    try:
        contract = contract_class.from_bytes(value)
    except ValidationError as error:
        return Faulty(Category.CONTRACT, problems_of(error))
    if key is None:
        return Faulty(Category.KEY, "key: there is none", contract.event_id)
    if key != contract.key.encode():
        return Faulty(Category.KEY, "key: differs from the one that the event belongs under", contract.event_id)
    return Decoded(contract)
