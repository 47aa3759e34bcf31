"""A comparison of two reports as Markdown that also reads well as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from megacompile.report import format as fmt
from megacompile.report import summary
from megacompile.report.diff_model import Change, Difference, EngineDiff, ReportDiff
from megacompile.report.markdown import text

SHOWN_LINES = 40
GATE_WORDS = {True: "passes", False: "fails", None: "is not judged"}


def render_diff(diff: ReportDiff) -> str:
    """What got better, what got worse, and what else differs."""
    name = text(diff.name_after)
    if diff.name_before != diff.name_after:
        name = f"{text(diff.name_before)} → {name}"
    lines = [f"### {name}: {_headline(diff)}", ""]
    lines += [f"Before: {text(diff.created_before)}. After: {text(diff.created_after)}.", ""]
    lines += _verdict(diff)
    if not diff.same_machine:
        lines += [
            f"> **Two machines:** before on {text(diff.machine_before)}, after on "
            f"{text(diff.machine_after)}. Latencies and memory are therefore not compared. "
            "Speed-ups are, but a difference may be the machine's.",
            "",
        ]
    if diff.reference_before != diff.reference_after:
        old, new = (text(one or "none") for one in (diff.reference_before, diff.reference_after))
        lines += [
            f"> **Two references:** speed-ups are against {old} before and against {new} after, "
            "and are therefore not compared.",
            "",
        ]
    for side in diff.withheld:
        lines += [f"> The report {side} withholds its speed-ups: its A/A check did not pass.", ""]
    if diff.winner is not None and diff.winner_before != diff.winner_after:
        lines += _section("The new winner against the old one", _engine_lines(diff.winner))
    shown = [line for one in diff.candidates for line in _titled(one, diff.winner_after)]
    lines += _section("Candidates", shown)
    drift = [line for one in diff.baselines for line in _titled(one)]
    lines += _section("Baselines", drift)
    lines += _section("Spec", _difference_lines(diff.spec))
    lines += _section("Versions", _difference_lines(diff.versions))
    return "\n".join(lines).rstrip() + "\n"


def _headline(diff: ReportDiff) -> str:
    worse, better = len(diff.worse), len(diff.better)
    parts = [f"{better} significantly better"] if better else []
    parts += [f"{worse} significantly worse"] if worse else []
    gates = [gate for one in diff.candidates for gate in one.gates]
    failing = sum(gate.after is False for gate in gates)
    parts += [f"{fmt.plural(failing, 'gate')} newly failing"] if failing else []
    if diff.verdict_before != diff.verdict_after:
        parts.append(f"verdict now {summary.VERDICT_WORDS[diff.verdict_after]}")
    return ", ".join(parts) or "nothing significantly better or worse"


def _verdict(diff: ReportDiff) -> list[str]:
    words = summary.VERDICT_WORDS
    before, after = words[diff.verdict_before], words[diff.verdict_after]
    verdict = f"Verdict: {after}" + ("" if before == after else f" (was {before})")
    old, new = (text(one) if one else "none" for one in (diff.winner_before, diff.winner_after))
    winner = f"Winner: {new}" + ("" if old == new else f" (was {old})")
    return [f"{verdict}. {winner}.", ""]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    rest = fmt.more(len(lines), SHOWN_LINES, "line")
    return [f"**{title}**", "", *lines[:SHOWN_LINES], *([f"- {rest}"] if rest else []), ""]


def _titled(one: EngineDiff, winner: str | None = None) -> list[str]:
    if not one.differs:
        return []
    lines = _engine_lines(one)
    crown = " (the winner)" if winner is not None and one.name == winner else ""
    return [f"- {text(one.name)}{crown}{_presence(one)}", *(f"  {line}" for line in lines)]


def _presence(one: EngineDiff) -> str:
    if one.presence == "only before":
        return ": no longer there"
    if one.presence == "only after" and one.status_after:
        return f": new, {summary.STATUS_WORDS[one.status_after]}"
    return ""


def _engine_lines(one: EngineDiff) -> list[str]:
    lines = []
    if one.status_before and one.status_after and one.status_before != one.status_after:
        words = summary.STATUS_WORDS
        lines.append(f"- status: {words[one.status_before]} → {words[one.status_after]}")
    if one.presence == "both" and one.precision_before != one.precision_after:
        old, new = one.precision_before or "unknown", one.precision_after or "unknown"
        lines.append(f"- precision: {text(old)} → {text(new)}")
    lines += [_change_line(change) for change in sorted(one.changes, key=_order)]
    lines += [
        f"- gate {text(gate.name)}: {GATE_WORDS[gate.after]}, before it {GATE_WORDS[gate.before]}"
        for gate in one.gates
    ]
    return lines


def _order(change: Change) -> int:
    if not change.significant:
        return 2
    return 0 if change.direction == "worse" else 1


def _change_line(change: Change) -> str:
    word = f"**{change.direction}**" if change.significant else "no significant change"
    figures = f"{change.before_text} → {change.after_text}"
    return f"- {word}: {text(change.label)} {figures} ({change.basis})"


def _difference_lines(differences: Sequence[Difference]) -> list[str]:
    lines = []
    for one in differences:
        before = "(absent)" if one.before is None else text(one.before, 80)
        after = "(absent)" if one.after is None else text(one.after, 80)
        lines.append(f"- {text(one.path)}: {before} → {after}")
    return lines
