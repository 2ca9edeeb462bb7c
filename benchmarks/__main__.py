"""Run every benchmark: python -m benchmarks [import | cli | plan | pool | laws | neuron | engine | page]."""

import sys

from benchmarks import measure, neuron, page

SETS = {
    "import": measure.imports,
    "cli": measure.command_line,
    "plan": measure.plans,
    "pool": measure.pool,
    "laws": measure.laws,
    "neuron": neuron.budgets,
    "engine": measure.engine_answers,
    "page": page.latency,
}


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in SETS]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; there are {', '.join(SETS)}")
        return 2
    print(f"{'what':<58}{'measured':>12}{'reference':>12}{'ratio':>8}  aim")
    for name in chosen or SETS:
        for row in SETS[name]():
            print(row.text(), flush=True)
    return 0


sys.exit(main(sys.argv[1:]))
