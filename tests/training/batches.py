"""A loader for trainers of tests."""


class Served:
    """Serves these batches, each by its data group; names: what it promises, by default what they hold."""

    def __init__(self, *batches, names=None):
        self.batches = batches
        self.promised = names or {group: tuple(batch) for groups in batches for group, batch in groups.items()}

    def names(self):
        return self.promised

    def __iter__(self):
        for groups in self.batches:
            yield {group: dict(batch) for group, batch in groups.items()}
