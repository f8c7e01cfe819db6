"""Signs that a run learns: validation, the bias of critics, norms of parameters, time."""
