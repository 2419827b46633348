"""Entry points only: command line, demo, embedded services."""
