"""Preflight: a fit on fake tensors, as one rank of many, that tells memory, communication and what to expect."""

from camshaft.trainer.preflight.report import DEVICES as DEVICES
from camshaft.trainer.preflight.report import Report as Report
from camshaft.trainer.preflight.run import preflight as preflight
from camshaft.trainer.preflight.world import simulated_world as simulated_world
