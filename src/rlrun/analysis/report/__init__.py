"""One page about many runs: what came out, how certain it is, and what is missing.

runs.py          what the files of runs and sweeps say
groups.py          which runs belong together, and what differs between them
statistics.py    rliable's aggregates and intervals, in numpy
findings.py      all numbers of a report
wording.py       numbers as people read them, and what to know before using them
figures.py       SVG
page.py          tables as HTML, Markdown and CSV, and the page
making.py        the Python function behind `rlrun report`
"""
