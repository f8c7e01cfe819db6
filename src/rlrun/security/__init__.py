"""Which code and which files a run may use that somebody else wrote."""
