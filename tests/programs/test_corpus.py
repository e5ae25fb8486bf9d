"""The corpus: programs as people write them in NumPy give NumPy's results on 1 and 3 ranks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import spmd
from benchmarks import passes
from codegen.compile import OPTIMISATIONS
from tests.programs.corpus.cases import cases
from tests.programs.corpus.entities import CLASSES
from tests.programs.corpus.forms import as_entity, as_program, inputs, results
from tests.programs.corpus.witnesses import NOWHERE, WITNESSES

pytestmark = pytest.mark.filterwarnings("ignore::spmd.LayoutWarning")  # their layouts are all alike
CASES = cases()


def compare(found: Any, wanted: Any, where: str) -> None:
    for k, (got, want) in enumerate(zip(found, wanted, strict=True)):
        single = np.asarray(want).dtype in (np.float32, np.complex64)
        np.testing.assert_allclose(got, want, rtol=1e-4 if single else 1e-8,
                                   atol=1e-5 if single else 1e-9, err_msg=f"output {k} {where}")


@pytest.mark.parametrize("name", CASES)
def test_programs_of_the_corpus_give_what_numpy_gives(name: str) -> None:
    case = CASES[name]
    if case.refused:
        with pytest.raises(spmd.SpmdError, match=case.refused):
            spmd.build(as_program(case, "one axis"))
        return
    given = case.given()
    wanted = results(case.function(**given), given)
    image = spmd.build(as_program(case, "one axis"))
    for ranks in (1, 3):
        found = image.run(ranks=ranks, **copy.deepcopy(inputs(case)))
        compare(found if isinstance(found, tuple) else (found,), wanted, f"on {ranks} ranks")


@pytest.mark.parametrize("kept", CLASSES, ids=lambda kept: kept.__name__)
def test_classes_of_the_corpus_give_what_their_eager_runs_give(kept: type) -> None:
    entity = as_entity(kept, "one axis")
    image = spmd.build(entity)
    for ranks in (1, 3):
        plain = entity.eager()
        with image.open(ranks=ranks) as job:
            for entry, given in CLASSES[kept]:
                wanted = getattr(plain, entry)(**copy.deepcopy(given))
                found = getattr(job, entry)(**given)
                if isinstance(wanted, dict):
                    assert found.keys() == wanted.keys()
                    found, wanted = found.values(), wanted.values()
                if wanted is not None:
                    pairs = (found, wanted) if not hasattr(wanted, "shape") else ([found], [wanted])
                    compare(*pairs, f"of {entry} on {ranks} ranks")


def test_every_optimisation_has_a_program_that_it_changes() -> None:
    assert {*WITNESSES} | NOWHERE == {*OPTIMISATIONS} and not {*WITNESSES} & NOWHERE


@pytest.mark.parametrize("name", WITNESSES)
def test_an_optimisation_changes_a_program_of_the_corpus(name: str) -> None:
    """One that changes none is to be deleted, or to become a case of a general one."""
    program, form = WITNESSES[name]
    (found,) = [f for f in passes.corpus() if (f.name, f.form) == (program, form)]
    assert name in passes.changed(found)["changed"]
