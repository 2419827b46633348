"""The parts of a rebuild; projections/rebuild.py puts them together."""
