"""What a rebuild works on: a projection, its database, the store, and a schema of its own for the other tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from domain.loading import load_business
from infrastructure.by_name import module_or_problem
from infrastructure.migrate import Migrations
from infrastructure.outbox import load_outbox
from infrastructure.postgres import Connection, Timeouts, connect
from infrastructure.settings import Settings
from projections import effects, inbox, positions
from projections.base import Projection
from projections.loading import Feed, LoadedProjection, load_projection
from projections.rebuilding.errors import RebuildRefused

FRAMEWORK = frozenset({inbox.MIGRATIONS.component, positions.MIGRATIONS.component, effects.COMPONENT})
"""Components whose tables are not made from events: they stay where they are, whatever is swapped."""

PATIENT = Timeouts(lock=10.0, statement=3_600.0, idle_in_transaction=60.0)
"""For statements that read or write whole tables."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
"""Of the projection's folder, which becomes a part of a schema's name."""


@dataclass(frozen=True)
class Target:
    """module: names the projection, here and in the workers' processes. dsn: its database.

    store_dsn: the store's, where it can be reached. kafka: the settings of the cluster with its topics. One of the
    two is needed: a rebuild reads from either.
    """

    module: str
    loaded: LoadedProjection
    dsn: str = field(repr=False)
    store_dsn: str | None = field(repr=False)
    outboxes: tuple[str, ...]
    """Those whose events it reads, if the domain has them."""
    kafka: Settings | None = field(default=None, repr=False)

    @classmethod
    def of(cls, module: str, store_dsn: str | None, dsn: str | None = None, kafka: Settings | None = None) -> "Target":
        """dsn: of its database if that is not the one that the settings name.

        Raises NoSuchProjection, SettingsError, RebuildRefused.
        """
        loaded = load_projection(module)
        name = loaded.projection.consumer_name
        if not _NAME.fullmatch(loaded.name):
            raise RebuildRefused(name, "the folder's name must be at most 41 characters of a-z, 0-9 and _")
        outboxes = loaded.outboxes or _outboxes_of(loaded.projection)
        return cls(module, loaded, dsn or loaded.dsn(), store_dsn, outboxes, kafka)

    @property
    def projection(self) -> Projection:
        return self.loaded.projection

    @property
    def name(self) -> str:
        return self.projection.consumer_name

    @property
    def is_fed_by_the_store(self) -> bool:
        return self.loaded.feed is Feed.STORE

    @property
    def has_effects(self) -> bool:
        return any(each.component == effects.COMPONENT for each in self.loaded.migrations)

    @property
    def other_schema(self) -> str:
        return f"rebuild_{self.loaded.name}"

    @property
    def own_migrations(self) -> Sequence[Migrations]:
        """Of the tables that are made from events, and nothing but them."""
        return [each for each in self.loaded.migrations if each.component not in FRAMEWORK]

    def connect(self) -> Connection:
        """To the live tables."""
        return connect(self.dsn, application_name=self._application_name, timeouts=PATIENT)

    def connect_other(self) -> Connection:
        """Names without a schema mean the other tables there, and never fall back to the live ones."""
        return connect(self.dsn_of_other(), application_name=self._application_name, timeouts=PATIENT)

    def connect_store(self) -> Connection:
        """Raises RebuildRefused when there is none that has its events."""
        if self.store_dsn is None:
            raise RebuildRefused(self.name, "no event store database is given (COUNTERFOIL_STORE_DSN)")
        if not self.outboxes:
            raise RebuildRefused(self.name, "no outbox of the domain publishes what it reads")
        return connect(self.store_dsn, application_name=self._application_name)

    def dsn_of_other(self) -> str:
        given = str(conninfo_to_dict(self.dsn).get("options") or "")
        return make_conninfo(self.dsn, options=f"{given} -c search_path={self.other_schema}".strip())

    @property
    def _application_name(self) -> str:
        return f"counterfoil rebuild {self.loaded.name}"


def _outboxes_of(projection: Projection) -> tuple[str, ...]:
    """All that publish a contract which the projection reads."""
    found = []
    for folder in load_business():
        name = f"domain.{folder}"
        if isinstance(module_or_problem(f"{name}.outbox"), str):
            continue
        if set(load_outbox(name).contracts) & set(projection.contracts):
            found.append(name)
    return tuple(found)
