"""Write the generated parts of docs/, and build the site.

A page marks such a part with `<!-- generated: settings -->` and `<!-- end -->`. This tool writes the text between the
two from the code; tests/docs/test_generated.py fails if a page is out of date.

    .venv/bin/python tools/docs.py           write them
    .venv/bin/python tools/docs.py --site    write them, then build site/ and fail on any warning (make docs)
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pyarrow as pa

import holdfast as hf
from holdfast import errors
from holdfast.runtime.cli.arguments import Parser
from holdfast.runtime.cli.main import COMMANDS, module_of
from holdfast.runtime.config.settings import SETTINGS, Setting
from holdfast.runtime.driver.master import ON, PHASES
from holdfast.runtime.driver.state import Over

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WARNING = re.compile(r"\bwarning\b|^griffe|^mkdocstrings|^ERROR", re.IGNORECASE | re.MULTILINE)
LATER = re.compile(r"^Status: (?:accepted, )?((?:in part )?(?:superseded|replaced) by \[.+?\]\(.+?\))", re.MULTILINE)
Command = tuple[str, argparse.ArgumentParser]


def main() -> int:
    """Write the generated parts, then build the site if asked. Exit status: 0 done, 1 the site has warnings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", action="store_true", help="build site/ as well")
    site = parser.parse_args().site
    for path, text in stale().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return build() if site else 0


def stale() -> dict[Path, str]:
    """Return the text of every page with a generated part, and every generated drawing, that is out of date."""
    found = {path: path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    fresh = {path: PART.sub(_part, text) for path, text in found.items()}
    drawing = DOCS / "benchmarks.svg"
    found[drawing] = drawing.read_text() if drawing.exists() else ""
    fresh[drawing] = str(loaded("tools/benchmark_chart.py").chart(fresh[DOCS / "comparison.md"]))
    return {path: text for path, text in fresh.items() if text != found[path]}


def build() -> int:
    """Build the site; return 1 if the generator gives a warning."""
    command = [str(ROOT / ".venv/docs/bin/zensical"), "build", "--clean", "--strict"]
    copied = DOCS / "changelog.md"
    copied.write_text(changelog())
    try:
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        copied.unlink()
    said = built.stdout + built.stderr
    if built.returncode or WARNING.search(said):
        print(said, file=sys.stderr)
        print("The site was not built without warnings. Correct the pages named above.", file=sys.stderr)
        return 1
    print(f"built {ROOT / 'site'}: open site/index.html, or: .venv/docs/bin/zensical serve")
    return 0


def changelog() -> str:
    """Return the page of changes: the file of the repository, with its links as the site has them."""
    text = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    return text.replace("# Changelog\n", f"# Changelog\n\nThis is the documentation of version {hf.__version__}.\n", 1)


def _part(match: re.Match[str]) -> str:
    return f"{match[1]}\n{PARTS[match[2]]()}\n{match[3]}"


def settings() -> str:
    """Return the table of all settings."""
    rows = ["| setting | default | range | meaning |", "|---|---|---|---|"]
    rows += [f"| `{s.name}` | {_shown(s, s.default)} | {_range(s)} | {_cell(s.doc)} |" for s in SETTINGS]
    return "\n".join(rows) + "\n"


def _range(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    if setting.unit == "text":
        return "text"
    most = "" if setting.most is None else f" to {_shown(setting, setting.most)}"
    return f"{_shown(setting, setting.least)}{most or ' or more'}"


def _shown(setting: Setting, value: int | str | None) -> str:
    if value is None:
        return "not set"
    return f"`{setting.text(value)}`"


def statuses() -> str:
    """Return the table of the kinds of error and their exit statuses."""
    kinds = [
        errors.HoldfastError,
        errors.ConfigError,
        errors.Damaged,
        errors.Unavailable,
        errors.Fenced,
        errors.JobFailed,
    ]
    rows = ["| error | `kind` in JSON | exit status | meaning |", "|---|---|---|---|"]
    for kind in kinds:
        meaning = (kind.__doc__ or "").strip().splitlines()[0]
        rows.append(f"| `hf.{kind.__name__}` | `{kind.kind}` | {kind.exit_status} | {_cell(meaning)} |")
    return "\n".join(rows) + "\n"


def commands() -> str:
    """Return a section for every command: description, arguments, examples."""
    return "\n".join(_section(name, parser) for name, parser in every_command())


def every_command() -> Iterator[Command]:
    """Yield the commands with their parsers; for a group, its members instead."""
    subparsers = Parser(prog="holdfast").add_subparsers(dest="command")
    for command in COMMANDS:
        module_of(command).add_parser(subparsers)
        yield from _leaves(f"holdfast {command}", subparsers.choices[command])


def _leaves(name: str, parser: argparse.ArgumentParser) -> Iterator[Command]:
    actions = parser._subparsers._group_actions if parser._subparsers else []
    members: Mapping[str, argparse.ArgumentParser] = actions[0].choices if actions else {}  # type: ignore[assignment]
    if not members:
        yield name, parser
    for member, below in members.items():
        yield from _leaves(f"{name} {member}", below)


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    lines = [f"## {name}", "", _text(parser.description or ""), ""]
    shown = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    shown.sort(key=lambda action: bool(action.option_strings))
    if shown:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_called(action)}` | {_cell(action.help or '')} |" for action in shown]
        lines.append("")
    epilog = parser.epilog or ""
    notes, _, examples = epilog.partition("example")
    if notes.strip():
        lines += [_text(notes), ""]
    if examples:
        typed = [line.strip() for line in examples.partition(":")[2].strip().splitlines()]
        lines += ["```text", *typed, "```", ""]
    return "\n".join(lines)


def _called(action: argparse.Action) -> str:
    values = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    value = values if isinstance(values, str) else " ".join(values)
    if not action.option_strings:
        return _cell(value)
    takes = action.nargs != 0
    return _cell(f"{', '.join(action.option_strings)}{f' {value}' if takes else ''}")


def _text(paragraphs: str) -> str:
    return "\n".join(line.strip().replace("<", "&lt;") for line in paragraphs.strip().splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("%%", "%")


def decisions() -> str:
    """Return the list of the decisions, each with what is true of it if it is not simply accepted."""
    lines = []
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        text = path.read_text()
        title = re.sub(r"^# \d{4}:? *", "", text.splitlines()[0])
        later = LATER.search(text)
        if not path.name.startswith("0000"):
            lines.append(f"- [{path.name[:4]}]({path.name}) {title}{f' ({later[1]})' if later else ''}")
    return "\n".join(lines) + "\n"


def streams() -> str:
    """Return the site's entries for streams: their classes have no public names, so an app creates them."""
    schema = pa.schema([pa.field("key", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)])
    stream = hf.App("docs").source("rows", hf.Log("rows", schema), event_time="at")
    keyed = stream.key_by("key")
    windowed = keyed.window(hf.tumbling("1m"))
    classes = [type(stream), type(keyed), type(windowed), type(windowed.agg("counts", rows=hf.count()))]
    return "\n\n".join(f"::: {each.__module__}.{each.__qualname__}" for each in classes) + "\n"


def conformance() -> ModuleType:
    """Return the tables of which test covers which failure; they lie beside the test that checks them."""
    return loaded("tests/docs/conformance.py")


def loaded(path: str) -> ModuleType:
    """Return a module of a file of the repository that is in no package."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def phases() -> str:
    """Return the table of the driver's phases: the facts of each, and which events lead to which phase."""
    rows = ["| phase | what is true | next phase, after which events |", "|---|---|---|"]
    for phase in PHASES:
        to = dict[str, list[str]]()
        for (here, event), on in ON.items():
            for after in on.to if here is phase else ():
                if after is Over:
                    continue  # from everywhere, by too many events for a table
                to.setdefault(after.__name__, []).append(event.__name__)
        moves = [f"**{after}**: {', '.join(f'`{event}`' for event in events)}" for after, events in to.items()]
        what = (phase.__doc__ or "").split("\n")[0]
        rows.append(f"| **{phase.__name__}** | {what} | {'<br>'.join(moves)} |")
    return "\n".join(rows) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "sinks": lambda: str(conformance().sinks()),
    "sources": lambda: str(conformance().sources()),
    "tests": lambda: str(conformance().names()),
    "settings": settings,
    "phases": phases,
    "statuses": statuses,
    "commands": commands,
    "decisions": decisions,
    "streams": streams,
}


if __name__ == "__main__":
    sys.exit(main())
