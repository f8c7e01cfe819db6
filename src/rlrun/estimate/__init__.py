"""What runs will cost, before they are begun: hours, disk, and a price where one is given.

shapes     jobs that cost the same, step by step
probing    run one of each shape for some seconds, as many at a time as there will be workers
probe      what happens in the process of a probe
model      from what a probe found to the time and the disk of the whole run
bill       from runs to a sweep
earlier    what runs of before took, for those who do not want to probe
"""

from rlrun.estimate.bill import Bill, makespan
from rlrun.estimate.earlier import known_costs
from rlrun.estimate.model import Cost, Measured, cost_of
from rlrun.estimate.probing import PROBE, estimate
from rlrun.estimate.shapes import Shape, differing, shape_of, shapes

__all__ = [
    "PROBE",
    "Bill",
    "Cost",
    "Measured",
    "Shape",
    "cost_of",
    "differing",
    "estimate",
    "known_costs",
    "makespan",
    "shape_of",
    "shapes",
]
