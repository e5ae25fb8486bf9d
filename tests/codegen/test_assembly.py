"""Machine code of real images: phases never see the index; it is used by arithmetic and branches.

objdump reads the very files that `spmd build` makes.
"""

import re
import shutil
import struct

import pytest

from codegen.compile import build, lower
from codegen.image import link, manifest
from tests.codegen import sample_programs

PROGRAMS = ("ring_allreduce", "branches", "halo", "in_place")

pytestmark = [
    pytest.mark.skipif(not shutil.which("objdump"), reason="objdump is not installed"),
    pytest.mark.usefixtures("users_cc"),
]


def functions(text):
    """Assembly by function; clones that the compiler made of one have names that begin alike."""
    return dict(re.findall(r"^[0-9a-f]+ <([\w.]+)>:\n((?:.+\n)+)", text, re.M))


def addresses(body):
    """Every address outside the function that its instructions name: `# 2110 <spmd_digest>`."""
    return [int(a, 16) for a in re.findall(r"# ([0-9a-f]+) <", body)]


def span(data, name):
    """First address and size of an allocated section, which here are not its place in the file."""
    (table,), (count, names) = (
        struct.unpack_from("<Q", data, 40),
        struct.unpack_from("<HH", data, 60),
    )
    rows = [struct.unpack_from("<IIQQQQ", data, table + 64 * k) for k in range(count)]
    texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
    found = [r for r in rows if texts[r[0] : texts.find(b"\0", r[0])].decode() == name]
    return found[0][3], found[0][5]


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request):
    return getattr(sample_programs, request.param)


@pytest.fixture(scope="module")
def data(program):
    return build(program, {}, target="x86-64")


@pytest.fixture(scope="module")
def code(data):
    return functions(link.disassemble(data))


def phases(code):
    return {name: body for name, body in code.items() if name.startswith("phase_")}


def test_every_phase_is_a_function_of_the_image(program, code):
    text = lower(program.capture()).source.text
    wanted = set(re.findall(r"^static void (phase_\d+)\(", text, re.M))
    assert wanted and wanted == {name.split(".")[0] for name in phases(code)}


def test_no_code_names_the_index_words(data, code):
    """They are read by the engine, which hands each rank its own in a spmd_rank."""
    start, size = span(data, ".spmd.index")
    scalars = manifest.read(data).manifest["scalars"]
    assert start and size == 8 * (manifest.INDEX_FIXED + len(scalars))
    for name, body in code.items():
        inside = [hex(a) for a in addresses(body) if start <= a < start + size]
        assert inside == [], f"{name} reads the index words"


def test_that_test_can_fail(program):
    """Code that does load the index words is noticed by what is tested above."""
    levels = lower(program.capture())
    reads = (
        'extern const int64_t spmd_index[] __attribute__((visibility("hidden")));\n'
        "__attribute__((noinline, used)) static int64_t phase_that_reads(void)\n"
        "{\n    return ((const volatile int64_t *)spmd_index)[3];\n}\n"
    )
    data = link.link(
        levels.source.text + reads, objects=[], constants=levels.source.constants, manifest={},
        notes={}, index_words=len(levels.plan.scalars), target="x86-64",
    )
    start, size = span(data, ".spmd.index")
    body = functions(link.disassemble(data))["phase_that_reads"]
    assert [a for a in addresses(body) if start <= a < start + size]


def test_no_phase_is_handed_the_rank(program):
    """A phase does not get the rank's record as an argument, so it cannot load the rank's index."""
    text = lower(program.capture()).source.text
    for name, arguments in re.findall(r"^static void (phase_\d+)\(([^)]*)\)", text, re.M):
        assert "spmd_rank" not in arguments and "spmd_world" not in arguments, name
    calls = re.findall(r"^ +phase_\d+\(((?:.|\n)*?)\);$", text, re.M)
    assert calls
    for call in calls:
        without = re.sub(r"\w+\(r, \w+\)|r->", "", call)  # an address, a scalar, a field
        assert not re.search(r"\br\b", without), f"r itself is an argument: {call}"


def test_phases_call_nothing_that_could_know_the_rank(code):
    ours = set(code)
    for name, body in phases(code).items():
        called = set(re.findall(r"call +[0-9a-f]+ <([\w.]+)", body)) & ours
        assert not {c for c in called if c.split(".")[0] in ("step", "load", "shard")}, name


# ---- both ways of using the index --------------------------------------------------------------


def test_the_index_gives_addresses_by_arithmetic():
    """pull_0 of the ring divides: which block is mine is a remainder of the position."""
    code = functions(link.disassemble(build(sample_programs.ring_allreduce, {}, target="x86-64")))
    assert re.search(r"\bidiv\b", code["pull_0"])
    assert re.search(r"\bidiv\b", code["step"]), "this rank's own block, in every step of the ring"


def test_the_index_gives_instructions_by_a_branch():
    """step() of `branches` reads coord[0] and jumps on it; each side calls its own phase."""
    code = functions(link.disassemble(build(sample_programs.branches, {}, target="x86-64")))
    step = code["step"].splitlines()
    text = lower(sample_programs.branches.capture()).source.text
    assert "branch on the index" in text
    sides = [k for k, line in enumerate(step) if re.search(r"call .*<phase_[34]\b", line)]
    assert len(sides) == 2
    coord = r"PTR \[r\w\w?\+0x8\]"  # coord[0] stands behind the index in a spmd_rank
    loads = [k for k, line in enumerate(step) if re.search(coord, line)]
    assert loads, "step() does not read coord[0]"
    decided = [
        k for k in loads
        if any(re.search(r"\bj(e|ne|s|ns|l|g|le|ge|a|b)\b", line) for line in step[k : k + 12])
    ]
    assert decided, "no jump follows the load of coord[0]"
