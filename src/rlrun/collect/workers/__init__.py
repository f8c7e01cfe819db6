"""Acting beside learning: in a thread, a process, or an actor of Ray.

`unroll` is what acts, wherever that is; a link starts it and lets it go. Both sides only ever read from an `Inbox`
that something else fills, so neither can block the other.
"""
