"""What passes and backends promise, and the route through them that a spec asks for."""

from megacompile.plan import registry
from megacompile.plan.backends import (
    Availability,
    Backend,
    Lowered,
    Machine,
    Refusal,
    Runner,
    Say,
    available_with,
    precision_of,
    silent,
)
from megacompile.plan.baselines import EAGER_BASELINES, LAST_FORM
from megacompile.plan.candidates import CandidatePlan
from megacompile.plan.declarations import FORMS, consumes, produces
from megacompile.plan.passes import (
    Effect,
    Fact,
    In,
    Metrics,
    Out,
    Pass,
    PassContext,
    Result,
    Run,
    Sites,
    Traits,
    select,
)
from megacompile.plan.planner import Plan, make_plan
from megacompile.plan.registry import backend_class
from megacompile.plan.routes import PlannedStep

# What a pass that trains hands back is part of the contract with passes.
from megacompile.report import Look, Metric, RecoveryRecord

__all__ = [
    "EAGER_BASELINES",
    "FORMS",
    "LAST_FORM",
    "Availability",
    "Backend",
    "CandidatePlan",
    "Effect",
    "Fact",
    "In",
    "Look",
    "Lowered",
    "Machine",
    "Metric",
    "Metrics",
    "Out",
    "Pass",
    "PassContext",
    "Plan",
    "PlannedStep",
    "RecoveryRecord",
    "Refusal",
    "Result",
    "Run",
    "Runner",
    "Say",
    "Sites",
    "Traits",
    "available_with",
    "backend_class",
    "consumes",
    "make_plan",
    "precision_of",
    "produces",
    "registry",
    "select",
    "silent",
]
