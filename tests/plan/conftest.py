"""What tests of both plans share."""

from dataclasses import replace

import numpy as np
import pytest

from capplan import Refused, plan
from capplan.plan import VERDICTS


@pytest.fixture(scope="session")
def unlike():
    """A function that says where many configurations are answered otherwise than each of them by itself.

    A whole that is refused, or a configuration whose mask says so, claims nothing that could be wrong.
    """

    def found(model, asked, names, **arrays):
        try:
            many = plan(model, replace(asked, **arrays))
        except Refused:
            return []
        size = len(next(iter(arrays.values())))
        wrong = []
        for i in range(size):
            word = many.verdict if isinstance(many.verdict, str) else VERDICTS[many.verdict[i]]
            if word == "refused":
                continue
            one = plan(model, replace(asked, **{name: values[i].item() for name, values in arrays.items()}))
            if one.verdict != word:
                wrong.append((i, "verdict", word, one.verdict))
            for name in names if one.verdict != "refused" else ():
                got, wanted = getattr(many, name), getattr(one, name)
                if (None if got is None else np.broadcast_to(got, size)[i]) != wanted:
                    wrong.append((i, name, got, wanted))
        return wrong

    return found
