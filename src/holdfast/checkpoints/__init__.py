"""One checkpoint in one store, all or nothing."""
