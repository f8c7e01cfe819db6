"""What shows whether a run learns: validation, the bias of critics, parameters, time."""
