"""Plans: the ledger of every distinct rank, the pool of the tightest, the verdict, and what to say about it."""

from capplan.plan.gpu import VERDICTS, Plan, plan

__all__ = ["VERDICTS", "Plan", "plan"]
