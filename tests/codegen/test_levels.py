"""Every level of some small programs as text; read a golden file before you update it."""

import pytest

from codegen.compile import lower
from codegen.ir.graph_text import module_text
from codegen.ir.plan_text import loops_text, plan_text
from tests.codegen import sample_programs

PROGRAMS = ("ring_allreduce", "branches", "in_place", "fed", "fed_ranks")


@pytest.fixture(scope="module", params=PROGRAMS)
def levels(request):
    return lower(getattr(sample_programs, request.param).capture())


def test_graph(levels, golden):
    golden(f"{levels.graph.name}.graph", module_text(levels.graph))


def test_program(levels, golden):
    golden(f"{levels.graph.name}.program", module_text(levels.program))


def test_loops(levels, golden):
    golden(f"{levels.graph.name}.loops", loops_text(levels.loops))


def test_plan(levels, golden):
    golden(f"{levels.graph.name}.plan", plan_text(levels.finished))


def test_c(levels, golden):
    golden(f"{levels.graph.name}.c", levels.source.text)


def test_the_same_program_gives_the_same_text(levels):
    again = getattr(sample_programs, levels.graph.name)
    assert lower(again.capture()).source.text == levels.source.text
