from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from msgspec.structs import replace

from holdfast.model import DriverProcess
from holdfast.runtime.wire.presence import _began, is_gone, myself


def me(**changed: Any) -> DriverProcess:
    return replace(myself("owner", 0), **changed)


class TestIsGone:
    def test_a_running_process_is_present(self) -> None:
        assert not is_gone(me())

    def test_an_ended_process_is_gone_even_before_its_parent_has_waited(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            driver = me(pid=child.pid, began=_began(child.pid))
            assert not is_gone(driver)
            assert child.stdin is not None
            child.stdin.close()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert is_gone(driver)
        assert is_gone(driver)

    def test_a_process_whose_number_was_reused_is_gone(self) -> None:
        began = me().began
        assert began is not None and is_gone(me(began=began - 1))

    def test_a_process_of_an_earlier_boot_is_gone(self) -> None:
        assert is_gone(me(boot_id="another"))

    def test_processes_of_another_machine_or_namespace_are_unknown(self) -> None:
        for elsewhere in ({"host": "elsewhere", "pid": 0}, {"namespace": "pid:[1]", "pid": 0}):
            assert not is_gone(me(**elsewhere))

    def test_a_status_of_an_earlier_version_has_only_host_and_number(self) -> None:
        assert not is_gone(DriverProcess(host=me().host, pid=os.getpid(), at=0))
