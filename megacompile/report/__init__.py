"""The report as data, and its views: HTML, Markdown, the terminal, and what differs in two."""

from megacompile.report.comparison import diff_reports
from megacompile.report.diff import render_diff
from megacompile.report.figures import Latency, Metric, Ratio
from megacompile.report.model import (
    AACheck,
    Baseline,
    BuildTime,
    Candidate,
    Ceiling,
    ErrorRecord,
    Gate,
    Point,
    Provenance,
    Report,
    SitesRecord,
    Skipped,
    Source,
    Step,
    Verdict,
)
from megacompile.report.store import read_report, write_report
from megacompile.report.terminal import render_terminal
from megacompile.report.trained import (
    WAITING,
    CheckpointRecord,
    CompileRecord,
    DistributeRecord,
    LargestBatch,
    Look,
    Operator,
    RecoveryRecord,
    StepError,
    StepFigures,
    TrainingRecord,
)

__all__ = [
    "WAITING",
    "AACheck",
    "Baseline",
    "BuildTime",
    "Candidate",
    "Ceiling",
    "CheckpointRecord",
    "CompileRecord",
    "DistributeRecord",
    "ErrorRecord",
    "Gate",
    "LargestBatch",
    "Latency",
    "Look",
    "Metric",
    "Operator",
    "Point",
    "Provenance",
    "Ratio",
    "RecoveryRecord",
    "Report",
    "SitesRecord",
    "Skipped",
    "Source",
    "Step",
    "StepError",
    "StepFigures",
    "TrainingRecord",
    "Verdict",
    "diff_reports",
    "read_report",
    "render_diff",
    "render_terminal",
    "write_report",
]
