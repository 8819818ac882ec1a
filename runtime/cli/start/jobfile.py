"""Finds the app in a job's Python file, and makes the file's code available on Spark's executors.

The file is executed under a module name of its own, so that its `if __name__ == "__main__"` part does not run.
Executors can import neither that module nor modules beside the file, so functions and classes of both are pickled by
value. Installed packages are expected on the executors as well.

Source: cloudpickle, register_pickle_by_value.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.runtime.api.app import App
    from holdfast.runtime.plan.code import JobModule

_NOT_LOADED = "the job was not loaded and nothing was started"
_NOT_IMPORTED = re.compile(r"cannot import name '(\w+)' from 'holdfast'")
_loading: list[Path] = []
"""The file that is being executed now."""


def load(path: str, name: str | None = None) -> App:
    """Execute a job's file and return its app.

    Args:
        name: Which app, for a file that builds several.

    Raises:
        ConfigError: the file does not exist or cannot be executed, or `name` does not choose exactly one of its apps.
    """
    file = Path(path)
    if not path:
        raise ConfigError(
            "the path of the job's file is empty",
            not_done=_NOT_LOADED,
            next_step="give the path of the file that builds the app",
        )
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "not a file"
        hint = "" if path.endswith(".py") else "; this command takes the job's Python file, not its name"
        raise ConfigError(
            f"{path} is {kind}", not_done=_NOT_LOADED, next_step=f"give the path of the file that builds the app{hint}"
        )
    return _app_of(_execute(file.absolute()), path, name)


def function_of(path: str, name: str) -> Callable[..., Any]:
    """Execute a Python file and return its function of this name.

    Raises:
        ConfigError: the file does not exist, cannot be executed, or has no such function.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"{path} is not a file", not_done=_NOT_LOADED, next_step=f"give a Python file with a function {name}"
        )
    function: Callable[..., Any] | None = getattr(_execute(file.absolute()), name, None)
    if not callable(function):
        raise ConfigError(
            f"{path} has no function {name}", not_done=_NOT_LOADED, next_step=f"define it: def {name}(state): ..."
        )
    return function


def refuse_while_loading() -> None:
    """Refuse to run an app whose file is only being loaded.

    Raises:
        ConfigError: a file is being loaded.
    """
    if _loading:
        raise ConfigError(
            f"{_loading[-1].name} runs its app as soon as it is imported",
            not_done=_NOT_LOADED,
            next_step='move the call of main() or run() to the end of the file, below: if __name__ == "__main__":',
        )


def ship_by_value(folder: Path, *, local: bool = False) -> tuple[JobModule, ...]:
    """Send functions and classes of every loaded module in this folder to workers by value.

    Args:
        local: Workers are processes of this machine, not of Spark, which has its own cloudpickle.

    Returns:
        The modules that the plan has to carry, so that workers find them by name: all but packages.
    """
    from holdfast.runtime.plan.code import JobModule

    main = sys.modules["__main__"]
    modules = [main] if _lies_in(main, folder) or not hasattr(main, "__file__") else []
    for name, module in list(sys.modules.items()):
        if "." not in name and name not in ("holdfast", "__main__") and _lies_in(module, folder):
            if local:
                cloudpickle.register_pickle_by_value(module)
            else:
                _send_by_value(module)
            if not hasattr(module, "__path__"):
                modules.append(module)
    return tuple(map(JobModule, modules))


def _prepare_spark(module: ModuleType) -> None:
    """Prepare a session that the code starts: its Python is this one, and functions of its DataFrames can be sent."""
    from holdfast.runtime.spark.launch import share_environment

    share_environment()
    _send_by_value(module)  # now: Spark pickles functions where the code names them


def _send_by_value(module: ModuleType) -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return False
    path = Path(file).absolute()
    return (path.parent.parent if path.name == "__init__.py" else path.parent) == folder


class _Loader(SourceFileLoader):
    """Always compiles the source: Python checks bytecode on disk only by the source's size and whole seconds."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(file: Path) -> ModuleType:
    name = "holdfast_job_" + re.sub(r"\W", "_", file.stem)
    loader = _Loader(name, str(file))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    sys.path.insert(0, str(file.parent))  # as `python job.py` does
    try:
        if b"pyspark" in loader.get_data(str(file)):
            _prepare_spark(module)
        with _marked(file):
            loader.exec_module(module)
    except HoldfastError:
        raise
    except ImportError as error:
        raise _of_import(error) or _unloadable(error, file) from error
    except (Exception, SystemExit) as error:  # whatever the user's code raised, it has to change
        raise _unloadable(error, file) from error
    return module


def _of_import(error: ImportError) -> HoldfastError | None:
    """Return the error for `from holdfast import NAME` if this version lacks the name; None for other import errors."""
    import holdfast

    match = _NOT_IMPORTED.match(str(error))
    if error.name != "holdfast" or match is None:
        return None
    try:
        getattr(holdfast, match[1])
    except HoldfastError as lacking:
        return lacking
    except AttributeError:
        pass
    return None


def _unloadable(error: BaseException, file: Path) -> ConfigError:
    return ConfigError(
        f"{file.name} cannot be loaded: {_described(error, file)}",
        not_done=_NOT_LOADED,
        next_step="correct the file; --debug shows the whole traceback",
    )


@contextmanager
def _marked(file: Path) -> Iterator[None]:
    _loading.append(file)
    try:
        yield
    finally:
        _loading.pop()


def _described(error: BaseException, file: Path) -> str:
    if isinstance(error, SystemExit):
        return "it ends the process when imported"
    if isinstance(error, SyntaxError):
        return f"{error.msg}" if error.lineno is None else f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return (f"line {lines[-1]}: " if lines else "") + "".join(traceback.format_exception_only(error)).strip()


def _app_of(module: ModuleType, path: str, name: str | None) -> App:
    from holdfast.runtime.api.app import App

    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    names = sorted(app.name for app in apps.values())
    if not apps:
        raise ConfigError(
            f"{path} builds no app",
            not_done=_NOT_LOADED,
            next_step='build one at the top level of the file: app = hf.App("name")',
        )
    chosen = [app for app in apps.values() if name is None or app.name == name]
    if len(chosen) == 1:
        return chosen[0]
    what = f"{path} builds {len(names)} apps" if name is None else f"{path} builds no app {name!r}"
    raise ConfigError(f"{what}: {', '.join(names)}", not_done=_NOT_LOADED, next_step=f"choose one: --app {names[0]}")
