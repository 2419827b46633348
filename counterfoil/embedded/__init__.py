"""Services that start by themselves, for the demo and the tests: nothing to install, nothing left over."""

from counterfoil.embedded.broker import EmbeddedBroker
from counterfoil.embedded.child import Child
from counterfoil.embedded.errors import ServiceBinariesMissing, ServiceFailed
from counterfoil.embedded.postgres import EmbeddedPostgres

__all__ = ["Child", "EmbeddedBroker", "EmbeddedPostgres", "ServiceBinariesMissing", "ServiceFailed"]
