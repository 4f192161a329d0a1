"""The harness's own estimators, declared through the same door as anyone's.

Formulas stand in `harness.methods`, which needs numpy; a declaration loads them when it is used, so
that cards are read without it. References are plain Python, term by term as the sources write them.
"""

from harness.estimators import batch, group

DECLARED = (*group.DECLARED, *batch.DECLARED)
