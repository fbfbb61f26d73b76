"""Tables that `query` and `export` offer, made of records and of what `capture.model` concludes from them."""
