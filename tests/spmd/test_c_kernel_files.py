"""C files of kernels: read when a program is built, refused with their lines, gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.image import build_cache, link

PROTOTYPE = "void f(const double *u, double *out, int64_t n)"
HEAD = "#include <stdint.h>\n"
LOOP = "{ for (int64_t i = 0; i < n; i++) out[i] = TIMES * u[i]; }\n"
GOOD = f"{HEAD}#define TIMES 2\n{PROTOTYPE}\n{LOOP}"

PROGRAM = f"""
import numpy as np, spmd
f = spmd.c_kernel("sub/f.c", "{PROTOTYPE}")

@spmd.program(mesh=("r",))
def applied(n: int = 4):
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    return f(u, out=spmd.like(u), halo={{"u": (0,)}})
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPMD_CACHE", str(tmp_path / "builds"))


def of_text(folder: Path, text: str, prototype: str = PROTOTYPE) -> Any:
    """A program that calls the function of a C file."""
    (folder / "f.c").write_text(text)
    f = spmd.c_kernel(folder / "f.c", prototype)

    @spmd.program(mesh=("r",))
    def applied(n: int = 4):
        u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
        return f(u, out=spmd.like(u), halo={"u": (0,)})

    return applied


def test_an_image_follows_the_file_and_what_it_includes(tmp_path, monkeypatch):
    header = tmp_path / "times.h"
    header.write_text("#define TIMES 2\n")
    program = of_text(tmp_path, f'{HEAD}#include "times.h"\n{PROTOTYPE}\n{LOOP}')
    first = spmd.build(program)
    assert list(first.run(ranks=2)) == list(program.eager()) == [0, 2, 4, 6]
    header.write_text("#define TIMES 3\n")
    assert list(spmd.build(program).run(ranks=2)) == list(program.eager()) == [0, 3, 6, 9]
    (tmp_path / "f.c").write_text(GOOD.replace("TIMES 2", "TIMES 5"))
    assert list(spmd.build(program).run(ranks=2)) == list(program.eager()) == [0, 5, 10, 15]

    f = program.function.__closure__[0].cell_contents
    jitted = spmd.jit(lambda u: f(u, out=spmd.like(u)), ranks=2)
    assert [list(jitted(np.ones(2))) for _ in range(2)] == [[5, 5], [5, 5]]
    (tmp_path / "f.c").write_text(GOOD.replace("TIMES 2", "TIMES 11"))
    assert list(jitted(np.ones(2))) == [11, 11]
    (tmp_path / "f.c").write_text(GOOD.replace("TIMES 2", "TIMES 5"))

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("compiled")

    monkeypatch.setattr(build_cache, "compile_c", refuse)
    monkeypatch.setattr(link, "link", refuse)
    assert list(spmd.build(program).run(ranks=2)) == [0, 5, 10, 15]  # as the build before


def test_the_image_runs_where_the_file_is_gone(tmp_path, spmd_command):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f.c").write_text(GOOD)
    (tmp_path / "applied.py").write_text(PROGRAM)
    spmd_command("build", str(tmp_path / "applied.py"), "-o", str(tmp_path / "a.img")).expect(0)
    (tmp_path / "sub" / "f.c").unlink()
    assert list(spmd.load(tmp_path / "a.img").run(ranks=3)) == [0, 2, 4, 6]
    spmd_command("show", str(tmp_path / "a.img")).expect(0, "kernel      f of f.c, buffers ")
    spmd_command("run", str(tmp_path / "applied.py")).expect(
        65, f"applied.py:3: cannot read {tmp_path}/sub/f.c: No such file", "folder of the program")


def test_no_path_is_in_an_image(tmp_path):
    """The same file in another folder gives the same bytes."""
    built = []
    for name in ("a", "elsewhere"):
        (tmp_path / name).mkdir()
        text = GOOD.replace("TIMES * u[i]", "sizeof __FILE__")
        built.append(spmd.build(of_text(tmp_path / name, text), cache=False))
    assert built[0].digest == built[1].digest
    assert list(built[0].run(ranks=2)) == [4.0] * 4


BODIES = [  # the C, the line that is named, and what is said
    (f"{HEAD}{PROTOTYPE}\n{{ out[0] = u[0] + ; }}", 3, "expected expression before ';' token"),
    (f"{HEAD}{PROTOTYPE}\n{{ out[0] = g(u[0]); }}", 3, "implicit declaration of function 'g'"),
    ('#include "nowhere.h"\n' + GOOD, 1, "nowhere.h: No such file or directory"),
    (f"{HEAD}\nvoid f(const float *u, double *out, int64_t n)\n{{ out[0] = u[0]; }}", 3,
     "the function is not what its prototype says"),
    (f"{HEAD}#include <stdlib.h>\n{PROTOTYPE}\n{{\n// malloc\nout[0] = *(double *)malloc(n);\n}}",
     6, "it calls malloc, which an image does not hold"),
    (f"{HEAD}#include <stdio.h>\n{PROTOTYPE}\n{{ puts(\"puts\"); out[0] = u[0]; }}", 4,
     "it calls puts"),
    (f"{HEAD}static int64_t calls;\n{PROTOTYPE}\n{{ out[0] = u[0] + calls++; }}", 2,
     "it keeps variables from one call to the next"),
    (f"{HEAD}{PROTOTYPE}\n{{\n    static double last;\n    out[0] = last; last = u[0];\n}}", 4,
     "it keeps variables from one call to the next"),
    (f"{HEAD}double seen[3];\n__attribute__((constructor)) static void begin(void)\n"
     f"{{ seen[0] = 1; }}\n{PROTOTYPE}\n{{ out[0] = u[0]; }}", 3,
     "a function of it runs when the image is loaded"),
    (f"{HEAD}__attribute__((target_clones(\"avx2\", \"default\")))\n{PROTOTYPE}\n"
     "{ out[0] = u[0]; }", 3, "f is chosen when the image is loaded"),
]


@pytest.mark.parametrize("text, line, said", BODIES)
def test_refused_with_the_line_of_the_c_file(tmp_path, text, line, said):
    program = of_text(tmp_path, text)
    with pytest.raises(spmd.KernelError) as caught:
        spmd.build(program)
    assert f"{tmp_path}/f.c:{line}: " in str(caught.value)
    assert said in str(caught.value) and "declared at " + __file__ in str(caught.value)


def test_a_file_without_the_function(tmp_path):
    program = of_text(tmp_path, GOOD.replace("void f(", "void f2("))
    with pytest.raises(spmd.KernelError, match=r"no function f in f.c(.|\n)*found: +f2\n"):
        spmd.build(program)
    with pytest.raises(spmd.KernelError, match="no function f in f.c"):
        program.eager()


PROTOTYPES = [
    ("int f(const double *u, double *out)", "returns void"),
    ("f(double *out)", "no type in front of its name"),
    ("void f(const double *u, const double *out)", "an output: a pointer that is not const"),
    ("void f(const size_t *u, double *out)", "const size_t *u"),
    ("void f(const double **u, double *out)", "const double **u"),
    ("void f(const double u[], double *out)", "const double u[]"),
    ("void f(const double *, double *out)", "found:    const double *"),
    ("void f(volatile double *u)", "volatile double *u"),
    ("void f(const double *u, double *u)", "another name for each parameter"),
    ("void f(const double *halo, double *out)", "halo and boundary are of calls"),
    ("void f(void)", "found:    void"),
    ("f", "found:    'f'"),
]


@pytest.mark.parametrize("prototype, said", PROTOTYPES)
def test_no_prototype_of_a_kernel(tmp_path, prototype, said):
    (tmp_path / "f.c").write_text(GOOD)
    with pytest.raises(spmd.KernelError, match="no prototype of a C function") as caught:
        spmd.c_kernel(tmp_path / "f.c", prototype)
    assert said in str(caught.value)


def called(call: Any, prototype: str, folder: Path) -> str:
    (folder / "f.c").write_text(GOOD)
    f = spmd.c_kernel(folder / "f.c", prototype)

    @spmd.program(mesh=("r",))
    def program(n: int = 4):
        u = spmd.input("u", (n, 2), np.float64, layout=("r", None), default=lambda i, j: i)
        return call(f, u)

    with pytest.raises(spmd.KernelError) as caught:
        spmd.build(program)
    return str(caught.value)


MIXED = "void f(const double *u, int k, float w, double *out, int64_t n, int64_t m)"
CALLS = [
    (lambda f, u: f(u, 1, 2), "missing a required argument: 'out'"),
    (lambda f, u: f(u, 1, out=spmd.like(u)), r"f(u, k, w, *, out, n=out.shape[0], m=out.shape[1])"),
    (lambda f, u: f(u, 1.5, 2, out=spmd.like(u)), "k is a number of another kind"),
    (lambda f, u: f(u, u[0], 2, out=spmd.like(u)), "k is an array"),
    (lambda f, u: f(2, 1, 2, out=spmd.like(u)), "u is a number"),
    (lambda f, u: f(u.astype(np.float32), 1, 2, out=spmd.like(u)), "u.astype(np.float64)"),
    (lambda f, u: f(u, 1, 2, out=spmd.empty(4)), "out has 1 dims, and 2 extents stand behind it"),
    (lambda f, u: f(u, 1, 2, out=np.zeros(4, np.float32)), "float64, for double *out"),
    (lambda f, u: f(u, spmd.start(u), 2, out=spmd.like(u)), "k is spmd.start of an array"),
    (lambda f, u: f(u, 1, 2, out=spmd.like(u), halo={"v": 1}), "halo= names 'v'"),
]


@pytest.mark.parametrize("call, said", CALLS)
def test_calls_that_do_not_fit_the_prototype(tmp_path, call, said):
    text = called(call, MIXED, tmp_path)
    assert said in text and __file__ in text


def test_references_take_what_the_function_takes(tmp_path):
    (tmp_path / "f.c").write_text(GOOD)
    with pytest.raises(spmd.KernelError, match="its reference has other parameters"):
        spmd.c_kernel(tmp_path / "f.c", PROTOTYPE, reference=lambda x: x)
    for reference, said in ((lambda u, n: u[: n - 1], "another shape for out"),
                            (lambda u: (u, u), "does not return its outputs")):
        f = spmd.c_kernel(tmp_path / "f.c", PROTOTYPE, reference=reference)

        @spmd.program(mesh=("r",))
        def applied(n: int = 4, f: Any = f):
            u = spmd.input("u", (n,), np.float64, default=lambda i: i)
            return f(u, out=spmd.like(u))

        with pytest.raises(spmd.KernelError, match=said):
            applied.eager()
