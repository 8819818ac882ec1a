from __future__ import annotations

import random

import polars as pl
import pytest

import holdfast as hf
from holdfast.checkpoint.bases import Thresholds, pieces
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.joblog import CheckpointCompleted, Completed
from holdfast.checkpoint.manifest import Manifest
from holdfast.chaos.workload import ArrivingSource, batches_of
from holdfast.chaos.oracle import Input
from holdfast.model import WorkerId
from holdfast.runtime.cluster import Cluster
from holdfast.runtime.plan import Plan
from holdfast.sinks.memory import MemorySink
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.storage.objects import MemoryObjects
