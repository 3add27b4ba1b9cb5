"""Records: the values under the keys of the metadata store, one module per kind."""
