"""Wrong versions of the storage that the tier must catch."""

def install(name):
    assert not name
