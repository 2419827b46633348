"""Everything goes wrong at once, by a plan that a seed makes: `make chaos`."""
