"""Work of the driver on separate lanes: listings of sources, folds, compactions, sweeps, positions shown."""
