"""Base of the public contracts: what the house tells the world, frozen and versioned."""

from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from domain.values import UtcTime

EventId = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
"""1 to 128 visible ASCII characters. Ours are `evt_` and the 32 hexadecimal digits of a UUID."""


class ContractPart(BaseModel):
    """A value inside a contract."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class Contract(ContractPart):
    """One version of one public event.

    A subclass declares `event_type` and `schema_version` as one-value Literals, the Kafka topic it
    travels on, the field that is its key, and who answers for it. Reading ignores fields it does not know,
    so that adding one breaks nobody; everything else is strict: whole numbers are whole numbers, times have
    zones.

    Constructing or reading raises pydantic.ValidationError, which names fields and never shows values.
    """

    topic: ClassVar[str]
    keyed_by: ClassVar[str]
    """The field that orders the events."""
    owner: ClassVar[str]
    """Who answers for it."""
    consumers: ClassVar[tuple[str, ...]] = ()
    """Known readers outside of this house; our own projections are found by themselves."""

    event_id: EventId
    event_type: str
    schema_version: int
    occurred_at: UtcTime

    @field_validator("schema_version", mode="before")
    @classmethod
    def _only_an_integer(cls, version: object) -> object:
        """A Literal compares by value, so that true and 1.0 would pass for 1."""
        if type(version) is not int:
            raise ValueError("must be an integer")
        return version

    @property
    def key(self) -> str:
        """What orders the events: all events of one key stay in order within the topic."""
        return str(getattr(self, self.keyed_by))

    @classmethod
    def undescribed(cls) -> tuple[str, ...]:
        """Names of what it does not say of itself, or wrongly; none when all is there that docs/topics.md tells."""
        said = {name: getattr(cls, name, None) for name in ("topic", "keyed_by", "owner")} | {"docstring": cls.__doc__}
        if said["keyed_by"] not in cls.model_fields:
            said["keyed_by"] = None
        return tuple(name for name, value in said.items() if not value)

    @classmethod
    @cache  # it is asked for with each event
    def contract_type(cls) -> str:
        return str(_only_value(cls, "event_type"))

    @classmethod
    @cache
    def contract_version(cls) -> int:
        return int(_only_value(cls, "schema_version"))

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        # The validator itself: model_validate_json spends an eighth as much on looking at its options.
        contract: Self = cls.__pydantic_validator__.validate_json(value)
        return contract

    def to_bytes(self) -> bytes:
        """The contract as JSON, fields in declared order, absent optional fields left out. Always the same bytes."""
        # The serializer itself: model_dump_json spends as much again on looking at its options and on a text.
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


def _only_value(contract: type[Contract], field: str) -> Any:
    (value,) = get_args(contract.model_fields[field].annotation)
    return value
