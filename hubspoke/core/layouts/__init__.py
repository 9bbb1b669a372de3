"""What a file says about its own structure: pure parsers of indexes, one format each."""
