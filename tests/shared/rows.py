"""Examples that are read by index."""


class ByIndex:
    """As data sets of Grain and PyTorch: a function of the index, and their number."""

    def __init__(self, row, size):
        self.row, self.size = row, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.row(index)
