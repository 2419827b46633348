"""Orders. To start another aggregate, copy this folder: commands, order, application, public_contracts, outbox."""
