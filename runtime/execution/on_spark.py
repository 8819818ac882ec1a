"""The place of workers that run as Spark tasks.

Source: DESIGN section 3.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

from holdfast.quantities import plural
from holdfast.runtime.execution.executing import Ports
from holdfast.runtime.execution.places import Started
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.processes.memory import container_of
from holdfast.runtime.spark.launch import SparkHost, check_java, check_slots, driver_host, start_context

IMPORTING = "they import their modules, and the first start of an installation compiles kernels, once"


class OnSpark:
    """See places.Place."""

    def start(self, prepared: Prepared, ports: Ports) -> Started:
        """See WorkerPlace.start."""
        settings = prepared.settings
        check_java(os.environ)
        slots = settings.parallelism + settings.standbys
        context = start_context(prepared.plan.app, settings.master, slots, note=ports.note)
        standbys = check_slots(context, settings.parallelism, settings.standbys, ports.note)
        if standbys < settings.standbys:
            ports.note(
                f"{settings.standbys} standbys were requested, and Spark has free slots for {standbys}; the run starts "
                "with these. For all of them, give Spark more cores"
            )
        ports.note(f"starting {plural(settings.parallelism + standbys, 'worker')}: {IMPORTING}")
        settings = replace(settings, standbys=standbys)
        container = container_of(prepared.plan, settings, dict(context.getConf().getAll()))
        return Started(driver_host(context), settings, container, partial(SparkHost, context))
