"""Work of the driver on lanes that nothing waits for: folds of the log, compactions, positions shown to sources."""
