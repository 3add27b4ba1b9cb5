"""Keys of rows: where a file has some of them, and which columns they were before."""
