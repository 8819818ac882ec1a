"""Work of the driver on lanes of its own: listings of sources, folds, compactions, sweeps, positions shown."""
