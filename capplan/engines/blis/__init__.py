"""The BLIS latency kernel: the memory laws by themselves, at ideal shares."""

from capplan.engines.blis.case import as_the_catalog_has_it
from capplan.engines.blis.hold import frame
from capplan.engines.blis.lines import ledger
from capplan.engines.blis.resolve import resolve
from capplan.engines.blis.rules import why_not

__all__ = ["as_the_catalog_has_it", "frame", "ledger", "resolve", "why_not"]
