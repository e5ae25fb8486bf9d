"""Schedules of pipelines: which stage does what of which microbatch in which tick, proved legal.

Schedules of learning rates are functions of `spmd.optim`; pipelines that prepare examples are in
`spmd.data`. Always holds: a Schedule that exists has passed every check.
"""

from __future__ import annotations

from spmd.schedules.actions import Action
from spmd.schedules.built_in import BUILT_IN
from spmd.schedules.making_schedules import make_schedule
from spmd.schedules.pipeline_schedule import Schedule
from spmd.schedules.stage_times import Times

__all__ = ["BUILT_IN", "Action", "Schedule", "Times", "make_schedule"]
