"""How decisions are kept, published and received. No business noun in here."""
