"""The command line: the same code as the library."""
