"""What others make of the published events: each folder a read model with a database of its own."""
