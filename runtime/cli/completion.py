"""`holdfast completion bash|zsh|fish`: prints a completion script, built from the parsers that the commands use.

The script holds plain words: commands, their actions, flags and choices. Pressing Tab starts no process; where no word
fits, the shell completes file names.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.cli.arguments import Parser, add_command
from holdfast.runtime.cli.reporting import print_json

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Words:
    """Words that may follow a command path, such as ("checkpoints", "list")."""

    path: tuple[str, ...]
    does: str
    words: tuple[str, ...]
    """Actions, choices of positional arguments, and flags."""
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """Flags that take one of a few values."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "completion",
        "Print a completion script for a shell. Save it where the shell loads completions.",
        "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast\n"
        'holdfast completion zsh > "${fpath[1]}/_holdfast"\n'
        "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print the script. Exit status: 0."""
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell](list(everything()))
    if args.json:
        print_json({"shell": args.shell, "script": script})
    else:
        print(script)
    return 0


def everything() -> Iterator[Words]:
    """Yield the words that can be typed, from the parsers of all commands."""
    from holdfast.runtime.cli.main import COMMANDS, module_of  # late, because main loads this module

    top = Parser(prog="holdfast")
    subparsers = top.add_subparsers(dest="command")
    for command in COMMANDS:
        module_of(command).add_parser(subparsers)
    yield Words((), "", (*COMMANDS, "--help", "--version"), ())
    for command, does in COMMANDS.items():
        yield from _walk((command,), subparsers.choices[command], does)


def bash(found: list[Words]) -> str:
    """Return the script for bash."""
    cases = [f"    {_pattern(each.path)}) words={shlex.quote(' '.join(each.words))} ;;" for each in found]
    values = [
        f"    {_pattern((*each.path, flag))}) words={shlex.quote(' '.join(choices))} ;;"
        for each in found
        for flag, choices in each.values
    ]
    deep = " ".join(sorted({each.path[0] for each in found if len(each.path) == 2}))
    return "\n".join(
        [
            "_holdfast() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" path="" words=""',
            '  [ "$COMP_CWORD" -gt 1 ] && path="${COMP_WORDS[1]}"',
            f'  case " {deep} " in *" $path "*) [ "$COMP_CWORD" -gt 2 ] && path="$path ${{COMP_WORDS[2]}}" ;; esac',
            '  case "$path $previous" in',
            *values,
            "  esac",
            '  [ -z "$words" ] && case "$path" in',
            *cases,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _holdfast holdfast",
        ]
    )


def zsh(found: list[Words]) -> str:
    """Return the script for zsh, which runs the bash script."""
    return "#compdef holdfast\nautoload -U +X bashcompinit && bashcompinit\n" + bash(found)


def fish(found: list[Words]) -> str:
    """Return the script for fish."""
    lines = []
    for each in found:
        seen = " && ".join(f"__fish_seen_subcommand_from {word}" for word in each.path)
        condition = f"-n {shlex.quote(seen or '__fish_use_subcommand')}"
        values = dict(each.values)
        for word in each.words:
            if word.startswith("--"):
                taken = f" -x -a {shlex.quote(' '.join(values[word]))}" if word in values else ""
                lines.append(f"complete -c holdfast {condition} -l {word[2:]}{taken}")
            else:
                does = next((other.does for other in found if other.path == (*each.path, word)), "")
                described = f" -d {shlex.quote(does)}" if does else ""
                lines.append(f"complete -c holdfast {condition} -a {shlex.quote(word)}{described}")
    return "\n".join(lines)


def _walk(path: tuple[str, ...], parser: argparse.ArgumentParser, does: str) -> Iterator[Words]:
    words: list[str] = []
    values: list[tuple[str, tuple[str, ...]]] = []
    below: list[Words] = []
    for action in parser._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        words += flags
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            help_of = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                below += _walk((*path, name), sub, help_of.get(name, ""))
        elif action.choices is not None:
            choices = tuple(str(choice) for choice in action.choices)
            values += [(flag, choices) for flag in flags]
            words += [] if flags else choices
    yield Words(path, does, tuple(words), tuple(values))
    yield from below


def _pattern(path: tuple[str, ...]) -> str:
    return '"' + " ".join(path) + '"'
