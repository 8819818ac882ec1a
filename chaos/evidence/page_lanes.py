"""The timeline of a run under live faults: lanes that share one axis of time, as HTML with SVG inside.

Curves are SVG that stretches to any width; marks, labels and ticks are HTML at percentages of it, so that they keep
their shape and stay readable on a phone. A run of hours has more samples than a screen has columns: then each column
shows the minimum and maximum of its samples, so that no spike is lost.

Invariants
    - Where a value is unknown the curve has a gap; it never falls to zero instead.
    - Every text from the journal is escaped.

Pure.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import median

from holdfast.chaos.evidence.report import Struck
from holdfast.chaos.judge.records import DriverNews, EpochDone, Journal, Recovery, Sample
from holdfast.runtime.cli.text import count, span

COLUMNS = 600
"""Each shows minimum and maximum, so a curve has at most twice as many points."""
GAP_FACTOR = 4.0
"""A silence this many times longer than usual is a gap in the curve."""
TICKS_MAX = 9
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400)
MIB = float(1 << 20)
COLOURS = 8
"""Number of colours for kinds of faults; further kinds reuse them."""
Known = tuple[float, float]
"""A moment in milliseconds, and a value."""
Point = tuple[float, float | None]
Format = Callable[[float], str]


def timeline(journal: Journal, faults: Sequence[Struck]) -> str:
    """Return all lanes, from the state of the job down to the axis."""
    end = max((record.at_ms for record in journal.records), default=0.0) or 1.0
    samples, recoveries = journal.of(Sample), journal.of(Recovery)
    behind = _bands(recoveries, end) + _strikes(faults, end)
    curves: list[tuple[str, str, str, list[Point], Format]] = [
        ("Throughput", "records/s", "rate", [(s.at_ms, s.rate) for s in samples], count),
        ("Lag", "records to read", "lag", [(s.at_ms, s.lag) for s in samples], count),
        ("Checkpoint age", "since the last one", "age", [(s.at_ms, s.epoch_age_ms) for s in samples], span),
    ]
    lanes = [_axis(end, "top"), _states(samples, journal.of(DriverNews), end)]
    lanes += [_curve(*curve, end, behind) for curve in curves]
    lanes.append(_bars(journal.of(EpochDone), end, behind))
    lanes.append(_fault_rows(faults, end))
    lanes.append(_recoveries(recoveries, end))
    if any(sample.rss_bytes is not None for sample in samples):
        memory = [(s.at_ms, None if s.rss_bytes is None else s.rss_bytes / MIB) for s in samples]
        lanes.append(_curve("Memory", "MiB of the workers", "memory", memory, count, end, behind))
    lanes.append(_axis(end, "bottom"))
    return f'<div class="lanes" data-end="{end:.0f}">{"".join(lanes)}<div class="cross" hidden></div></div>'


def ticks(end_ms: float) -> list[float]:
    """Return round moments from 0 to the end, in milliseconds."""
    step = next((each for each in STEPS_S if end_ms / 1000 / each <= TICKS_MAX), STEPS_S[-1])
    return [1000.0 * second for second in range(0, int(end_ms / 1000) + 1, step)]


def clock(at_ms: float) -> str:
    """Return a moment of the run: "0:05", "12:40", "1:02:00"."""
    minutes, seconds = divmod(round(at_ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def thinned(points: Sequence[Known], end: float, columns: int = COLUMNS) -> list[Known]:
    """Keep the minimum and maximum of every column, in their order."""
    if len(points) <= 2 * columns:
        return list(points)
    extremes: list[Known] = []
    at = 0
    for column in range(columns):
        upto = len(points) if column == columns - 1 else _first_after(points, end * (column + 1) / columns)
        part, at = points[at:upto], upto
        if part:
            least, most = (choose(part, key=lambda point: point[1]) for choose in (min, max))
            extremes += sorted({least, most})
    return extremes


def pieces(points: Sequence[Point]) -> list[list[Known]]:
    """Return the runs of known values, cut at unknown values and long silences."""
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(points)]
    silence = GAP_FACTOR * median(steps) if steps else 0.0
    runs: list[list[Known]] = [[]]
    for at, value in points:
        if runs[-1] and (value is None or at - runs[-1][-1][0] > silence):
            runs.append([])
        if value is not None:
            runs[-1].append((at, value))
    return [piece for piece in runs if piece]


def top_of(values: Iterable[float]) -> float:
    """Return a round number that no value exceeds."""
    most = max(values, default=0.0)
    if most <= 0:
        return 1.0
    power = 10.0 ** (len(str(int(most))) - 1)
    return next(factor * power for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if factor * power >= most)


def colours_of(faults: Sequence[Struck]) -> dict[str, int]:
    """Return the colour of every kind of fault."""
    return {kind: number % COLOURS for number, kind in enumerate(sorted({fault.fault for fault in faults}))}


def describe(fault: Struck) -> str:
    """Describe a fault in a few lines."""
    place = " on ".join(part for part in (fault.fault, fault.target) if part)
    word = "fired" if fault.fired_ms is not None else fault.outcome
    lines = [f"{place} ({fault.id})", f"{word} at {clock(fault.at_ms)}"]
    if fault.lasted_ms is not None:
        lines.append(f"healed after {span(fault.lasted_ms)}")
    return "\n".join([*lines, *([fault.detail] if fault.detail else [])])


def _first_after(points: Sequence[Known], at: float) -> int:
    return bisect_right(points, at, key=lambda point: point[0])


def _lane(kind: str, name: str, about: str, plot: str, scale: str = "") -> str:
    return (
        f'<div class="lane {kind}"><div class="label"><b>{escape(name)}</b><span>{escape(about)}</span></div>'
        f'<div class="plot">{plot}{scale}</div></div>'
    )


def _svg(inside: str) -> str:
    return f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{inside}</svg>'


def _bands(recoveries: Sequence[Recovery], end: float) -> str:
    """Return the recoveries as shaded bands behind every curve."""
    return "".join(
        f'<rect class="band" x="{1000 * each.began_ms / end:.2f}" y="0" '
        f'width="{max(1.2, 1000 * each.recovery_ms / end):.2f}" height="100"/>'
        for each in recoveries
        if each.recovery_ms is not None and each.began_ms is not None
    )


def _strikes(faults: Sequence[Struck], end: float) -> str:
    """Return a line at every fault that fired, in the colour of its kind."""
    return "".join(
        f'<path class="strike c{colour}" d="'
        + "".join(
            f"M{1000 * fault.fired_ms / end:.1f},0V100"
            for fault in faults
            if fault.fault == kind and fault.fired_ms is not None
        )
        + '"/>'
        for kind, colour in colours_of(faults).items()
    )


def _curve(name: str, unit: str, kind: str, points: Sequence[Point], shown: Format, end: float, behind: str) -> str:
    values = [value for _, value in points if value is not None]
    if not values:
        return _lane(kind, name, unit, '<p class="none">unknown</p>')
    top = top_of(values)
    parts = []
    for piece in (thinned(each, end) for each in pieces(points)):
        line = "L".join(f"{1000 * at / end:.1f},{100 - 100 * value / top:.1f}" for at, value in piece)
        first, last = (f"{1000 * piece[index][0] / end:.1f}" for index in (0, -1))
        parts.append(f'<path class="area" d="M{first},100L{line}L{last},100Z"/><path class="line" d="M{line}"/>')
    about = f"{unit}; median {shown(median(values))}, at most {shown(max(values))}"
    plot = _svg(f'{behind}<path class="grid" d="M0,50H1000"/>' + "".join(parts))
    return _lane(kind, name, about, plot, _scale(top, shown))


def _scale(top: float, shown: Format) -> str:
    return f'<span class="top">{escape(shown(top))}</span><span class="half">{escape(shown(top / 2))}</span>'


def _bars(epochs: Sequence[EpochDone], end: float, behind: str) -> str:
    points = [(epoch.at_ms, epoch.duration_ms) for epoch in epochs if epoch.duration_ms is not None]
    durations_ms = [value for _, value in points]
    if not durations_ms:
        return _lane("epochs", "Epochs", "how long checkpoints took", '<p class="none">unknown</p>')
    top = top_of(durations_ms)
    bars = "".join(f"M{1000 * at / end:.1f},100V{100 - 100 * value / top:.1f}" for at, value in thinned(points, end))
    about = f"{count(len(epochs))} completed; median {span(median(durations_ms))}, at most {span(max(durations_ms))}"
    return _lane("epochs", "Epochs", about, _svg(f'{behind}<path class="bar" d="{bars}"/>'), _scale(top, span))


def _states(samples: Sequence[Sample], drivers: Sequence[DriverNews], end: float) -> str:
    """Return the state of the job as a ribbon, with the starts and ends of drivers on it."""
    stretches: list[tuple[str, float, float]] = []
    for sample in samples:
        state = sample.state or "unknown"
        if stretches and stretches[-1][0] == state:
            stretches[-1] = (state, stretches[-1][1], sample.at_ms)
        else:
            began = stretches[-1][2] if stretches else sample.at_ms
            stretches.append((state, began, sample.at_ms))
    ribbon = "".join(
        f'<i class="state {_class_of(state)}" title="{escape(f"{state} from {clock(began)} to {clock(over)}")}" '
        f'style="left:{_percent(began, end)};width:{_percent(over - began, end)}"></i>'
        for state, began, over in stretches
    )
    marks = "".join(
        f'<i class="driver {news.phase}" title="{escape(_driver(news))}" style="left:{_percent(news.at_ms, end)}"></i>'
        for news in drivers
    )
    starts = sum(news.phase == "started" for news in drivers)
    about = "state of the job" + (f"; {starts} driver starts" if starts > 1 else "")
    return _lane("states", "Job", about, ribbon + marks)


def _class_of(state: str) -> str:
    return state if state in ("running", "recovering", "starting") else "down"


def _driver(news: DriverNews) -> str:
    pid = "" if news.pid is None else f" (pid {news.pid})"
    left = "" if news.exit is None else f", exit status {news.exit}"
    return f"driver{pid} {news.phase} at {clock(news.at_ms)}{left}"


def _fault_rows(faults: Sequence[Struck], end: float) -> str:
    """Return one row of marks per kind of fault; each mark is an element of the class `fault`."""
    rows = []
    for kind, colour in colours_of(faults).items():
        same = [fault for fault in faults if fault.fault == kind]
        fired = sum(fault.fired_ms is not None for fault in same)
        about = f"{fired} fired" + (f", {len(same) - fired} did not" if fired < len(same) else "")
        marks = "".join(_outage(fault, end) for fault in same) + "".join(_mark(fault, end) for fault in same)
        rows.append(_lane(f"faults c{colour}", kind, about, f'<i class="rail"></i>{marks}'))
    return "".join(rows) or _lane("faults", "Faults", "", '<p class="none">none was armed</p>')


def _mark(fault: Struck, end: float) -> str:
    fired = "fired" if fault.fired_ms is not None else "missed"
    says = escape(describe(fault))
    return (
        f'<i class="fault {fired}" data-id="{escape(fault.id)}" tabindex="0" role="img" title="{says}" '
        f'aria-label="{says}" style="left:{_percent(fault.at_ms, end)}"></i>'
    )


def _outage(fault: Struck, end: float) -> str:
    if fault.fired_ms is None or fault.lasted_ms is None:
        return ""
    width = _percent(fault.lasted_ms, end)
    return f'<i class="outage" style="left:{_percent(fault.fired_ms, end)};width:{width}"></i>'


def _recoveries(recoveries: Sequence[Recovery], end: float) -> str:
    durations_ms = [each.recovery_ms for each in recoveries if each.recovery_ms is not None]
    if not recoveries:
        return _lane("recoveries", "Recoveries", "", '<p class="none">none</p>')
    if not durations_ms:
        return _lane("recoveries", "Recoveries", f"{len(recoveries)}, of unknown length", '<p class="none">unknown</p>')
    top = top_of(durations_ms)
    stems, dots = [], []
    for each in recoveries:
        if each.recovery_ms is not None and each.began_ms is not None:
            began, height = each.began_ms, 100 * each.recovery_ms / top
            stems.append(f"M{1000 * began / end:.1f},100V{100 - height:.1f}")
            title = escape(f"{each.cause or 'recovery'}\n{span(each.recovery_ms)}, from {clock(began)}")
            dots.append(f'<i class="dot" title="{title}" style="left:{_percent(began, end)};bottom:{height:.1f}%"></i>')
    about = f"{count(len(recoveries))}; median {span(median(durations_ms))}, at most {span(max(durations_ms))}"
    plot = _svg(f'<path class="grid" d="M0,50H1000"/><path class="stem" d="{"".join(stems)}"/>') + "".join(dots)
    return _lane("recoveries", "Recoveries", about, plot, _scale(top, span))


def _axis(end: float, place: str) -> str:
    marks = "".join(
        f'<span class="tick{" minor" if number % 2 else ""}" style="left:{_percent(at, end)}">{clock(at)}</span>'
        for number, at in enumerate(ticks(end))
    )
    return f'<div class="lane axis axis-{place}"><div class="label"></div><div class="plot">{marks}</div></div>'


def _percent(at: float, end: float) -> str:
    return f"{100 * min(max(at, 0.0), end) / end:.3f}%"
