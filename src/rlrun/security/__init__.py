"""Which code and files an untrusted run may use."""
