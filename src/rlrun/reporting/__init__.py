"""One page about many runs: what came out, how certain it is, and what is missing.

runs.py, jobs.py      what the files of runs and sweeps say
arms.py               which runs belong together, and what differs between them
statistics.py         rliable's aggregates and intervals, in numpy
findings.py           all numbers of a report
plotting.py           axes, lines and bands as SVG; figures.py: those of a report
page.py, tables.py    HTML; Markdown and CSV
making.py             the twin of `rlrun report`
"""
