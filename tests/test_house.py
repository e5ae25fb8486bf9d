"""The rules of the house, read from the sources: who imports whom, sizes, the map of the code.

Nothing is imported here; a rule that a file breaks is named with file and line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from docs.code_map import code_map, is_listed
from tests.pages import DOCS

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("codegen", "spmd", "examples", "benchmarks", "tests", "docs")

# A module imports only modules of its own level or a lower one. The longest prefix counts.
LEVELS = {prefix: level for level, prefixes in enumerate((
    "errors ir.fresh progress short_batches suggest target validators",
    "checks.names dtypes philox places printed routine_trials symbolic",
    "functions library_routines mesh misspelt ops.partials symbolic.estimate symbolic.extents "
    "symbolic.facts symbolic.partners symbolic.prove symbolic.sampling",
    "gufunc ir.graph",
    "ir.cuts ir.indexing ir.plan ops image.commands image.elf image.prototypes user.casts",
    "ir image user verify.exchange_table",
    "graph pipeline",
    "layouts",
    "loops",
    "plan",
    "checks emit explain oracle trace verify",
    "describe image.build_cache",
    "compile",
), 0) for prefix in (f"codegen.{name}" for name in prefixes.split())} | {"spmd": 13}

# The rooms of the middle end, in the order in which they import each other, above the grammars and
# the ops.
ROOMS = ("ir", "ops", "graph", "layouts", "loops", "plan")

# The packages of spmd.feeding, and which others each imports: those all stand above it.
FEEDING = {
    "host": set(),
    "messages": {"host"},
    "results": {"host"},
    "workers": {"host", "messages", "results"},
    "scheduling": {"host", "messages"},
    "clients": {"host", "messages", "results"},
    "consumers": {"host", "messages", "results"},
    "status": {"messages", "scheduling"},
    "jobs": {"host", "messages", "clients"},
    "starting": {"host", "messages", "workers", "scheduling", "status", "clients", "consumers"},
}

# Who alone may import what.
ONLY = {
    "numba": ("codegen.image.kernel_objects",),
    "llvmlite": ("codegen.image.kernel_objects",),
    "cffi": ("spmd.engine",),
    "_cffi_backend": ("spmd.engine",),
    "subprocess": ("codegen.image.commands", "spmd.feeding.host.children",
                   "spmd.serving.json_process"),
    "zmq": ("spmd.feeding.messages.keys", "spmd.feeding.messages.sockets"),
    "mpi4py": ("spmd.launch.launchers",),
    "shtab": ("spmd.completion",),
    "starlette": ("spmd.serving.web_application",),
    "grpc": ("spmd.serving.grpc_service",),
    "google": ("spmd.serving.grpc_messages",),
    "uvicorn": ("spmd.serving.serve_command", "spmd.serving.http_protocol"),
    "prometheus_client": ("spmd.serving.request_metrics", "spmd.feeding.status.metrics"),
}

# What ranks under mpirun never import at start: these may use NumPy and the compiler.
HEAVY = (
    "spmd.arrays", "spmd.bench.calibrate", "spmd.bench.engine_copies", "spmd.bench.probe",
    "spmd.bench.programs", "spmd.building",
    "spmd.data", "spmd.feeding",
    "spmd.distributed", "spmd.doctor", "spmd.doctor_check", "spmd.doctor_engine",
    "spmd.doctor_mpi", "spmd.eager_command", "spmd.eager_state", "spmd.engine.feed_rings",
    "spmd.entries", "spmd.extend", "spmd.files.convert", "spmd.files.written_tables",
    "spmd.fitting",
    "spmd.state_arrays",
    "spmd.image", "spmd.jit_arguments", "spmd.jitting", "spmd.launch.eager_feeds",
    "spmd.launch.eager_frames", "spmd.launch.iterable_supply", "spmd.nn", "spmd.numpy",
    "spmd.opened", "spmd.opening", "spmd.optim", "spmd.output_parts", "spmd.output_trees",
    "spmd.pipelining",
    "spmd.prepared_calls", "spmd.random", "spmd.routine_checks", "spmd.schedules", "spmd.serving",
    "spmd.show",
    "spmd.source", "spmd.streaming", "spmd.tree", "spmd.verify.images",
)
LIGHT = (
    "codegen", "codegen.checks.names", "codegen.image.elf", "codegen.image.elf_dynamic",
    "codegen.errors", "codegen.image.conditions", "codegen.image.manifest",
    "codegen.image.schema", "codegen.image.target",
    "codegen.places", "codegen.progress", "codegen.suggest", "codegen.symbolic.meaning",
    "codegen.user.given_extents", "codegen.user.named", "codegen.validators",
    "codegen.verify.exchange_table",
)

# A grammar stands on one page, in the docstring of its module.
GRAMMARS = (
    "codegen/ir/graph.py", "codegen/ir/loops.py", "codegen/ir/plan.py",
    "codegen/symbolic/expr.py",
)


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name. lazy: inside a function."""

    importer: str
    module: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer} line {self.line} imports {self.module}"


def python_files(*folders: str) -> list[Path]:
    return sorted(p for f in folders for p in (ROOT / f).rglob("*.py")) + [ROOT / "setup.py"]


def c_files() -> list[Path]:
    return sorted((ROOT / "csrc").rglob("*.[ch]"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    return name(path).removesuffix(".py").replace("/", ".")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in one: what may import, or hold a function that is not a lambda."""
    kinds = ast.stmt | ast.excepthandler | ast.match_case
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, kinds))


def functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    for child in statements(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        yield from functions(child)


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(p) for p in python_files("codegen", "spmd"))


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@cache
def imports(path: Path, types: bool = False) -> tuple[Import, ...]:
    return tuple(_imports(path, types))


def _imports(path: Path, types: bool) -> Iterator[Import]:
    """Imports under `if TYPE_CHECKING:`, which are for readers, where `types` asks for them."""
    importer = module_name(path)
    package = importer.removesuffix(".__init__") if path.stem == "__init__" else (
        importer.rpartition(".")[0])

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join(parts[: len(parts) - node.level + 1] + ([base] if base else []))
            for alias in node.names:
                full = f"{base}.{alias.name}"
                known = full in modules() or (ROOT / full.replace(".", "/")).is_dir()
                yield Import(importer, full if known else base, node.lineno, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in statements(node):
            yield from visit(child, inside)

    yield from visit(tree(path), False)


def all_imports(*folders: str, types: bool = False) -> list[Import]:
    return [i for p in python_files(*folders) if p.name != "setup.py" for i in imports(p, types)]


def level(module: str) -> int | None:
    found = [prefix for prefix in LEVELS if is_within(module, prefix)]
    return LEVELS[max(found, key=len)] if found else None


# ---- who imports whom


def test_every_module_has_a_level():
    files = [p for p in python_files("codegen") if p.name not in ("__init__.py", "setup.py")]
    assert files
    assert [name(p) for p in files if level(module_name(p)) is None] == []


def test_levels_import_downwards_only():
    wrong = [
        str(i)
        for i in all_imports("codegen")
        if (mine := level(i.importer)) is not None
        and (theirs := level(i.module)) is not None
        and theirs > mine
    ]
    assert wrong == []


def test_codegen_knows_no_spmd_and_no_mpi():
    banned = ("spmd", "mpi4py", "multiprocessing", "socket")
    wrong = [i for i in all_imports("codegen") if any(is_within(i.module, b) for b in banned)]
    assert [str(i) for i in wrong] == []


def test_packages_of_feeding_import_what_is_listed():
    found: dict[str, set[str]] = {}
    for path in python_files("spmd/feeding"):
        if name(path).startswith("spmd/feeding/") and path.stem != "__init__":
            mine = found.setdefault(module_name(path).split(".")[2], set())
            mine |= {i.module.split(".")[2] for i in imports(path)
                     if i.module.startswith("spmd.feeding.")}
    assert {package: others - {package} for package, others in found.items()} == FEEDING
    order = list(FEEDING)
    upwards = {p: others - set(order[:order.index(p)]) for p, others in FEEDING.items()}
    assert not any(upwards.values()), upwards


@pytest.mark.parametrize("module", ONLY)
def test_imported_in_one_place_only(module):
    found = [i for i in all_imports("codegen", "spmd") if is_within(i.module, module)]
    wrong = [i for i in found if not any(is_within(i.importer, p) for p in ONLY[module])]
    assert [str(i) for i in wrong] == []


def test_mpi_starts_only_when_asked():
    early = [i for i in all_imports("spmd") if is_within(i.module, "mpi4py") and not i.lazy]
    assert [str(i) for i in early] == []


def test_networks_and_optimizers_use_the_public_interface():
    """They are written with spmd.extend and names of spmd, which users have too."""
    public = ("spmd.nn", "spmd.optim", "spmd.extend", "spmd.random")
    found = [i for i in all_imports("spmd/nn", "spmd/optim")
             if is_within(i.module, "codegen") or is_within(i.module, "spmd")]
    wrong = [str(i) for i in found
             if i.module != "spmd" and not any(is_within(i.module, p) for p in public)]
    assert found and wrong == []


def late_bindings(path: Path) -> Iterator[int]:
    """Lines of statements at the top of a module that change what it has imported of ours."""
    ours = {alias.asname or alias.name for node in tree(path).body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codegen")
            for alias in node.names}
    for node in ast.walk(ast.Module([n for n in tree(path).body if not isinstance(
            n, ast.FunctionDef | ast.ClassDef)], [])):
        targets = (node.targets if isinstance(node, ast.Assign) else
                   [node.func] if isinstance(node, ast.Call) and isinstance(
                       node.func, ast.Attribute) and node.func.attr in ("update", "append") else
                   node.args[:1] if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                       "setattr", "methods.give", "methods.refuse_setting") else [])
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            bare = isinstance(node, ast.Assign) and root is target  # a name of its own
            if isinstance(root, ast.Name) and root.id in ours and not bare:
                yield node.lineno


def test_late_bindings_are_made_in_one_file():
    """Registration.py holds what modules need of those above them; only formulas bind theirs in the
    page of their vocabulary."""
    files = python_files("codegen")
    found = {name(p): lines for p in files if (lines := list(late_bindings(p)))}
    assert {file: len(lines) for file, lines in found.items()} == {
        "codegen/trace/registration.py": 10, "codegen/symbolic/expr.py": 1}, found


def test_rooms_import_in_their_order():
    """Each room can be read with those before it alone: also what is imported for types. Texts and
    walks of codegen/ir that stand above the ops may import these; an Op names the class of its
    kind."""
    rooms = {f"codegen.{room}": k for k, room in enumerate(ROOMS)}

    def room(module: str) -> int:
        return next((k for prefix, k in rooms.items() if is_within(module, prefix)), -1)

    found = all_imports(*(f"codegen/{name}" for name in ROOMS), types=True)
    upwards = [
        str(i) for i in found
        if room(i.module) > room(i.importer)
        and not (room(i.importer) == 0 and level(i.importer) >= level(i.module))
        and (i.importer, i.module) != ("codegen.ir.graph", "codegen.ops.kind")
    ]
    assert found and upwards == []
    beside = [f"codegen.{name}" for name in "checks emit explain oracle trace verify".split()]
    wrong = [i for i in found if any(is_within(i.module, prefix) for prefix in beside)]
    assert [str(i) for i in wrong if not is_within(i.module, "codegen.checks.names")] == []


def test_oracles_import_nothing_of_the_tracer():
    """An oracle's results must not depend on how the tracer reads a program."""
    found = all_imports("codegen/oracle")
    assert found and [str(i) for i in found if is_within(i.module, "codegen.trace")] == []


def test_checkers_share_no_code_with_what_they_check():
    """They read the grammar and where buffers lie, and of what they check the class of its rows."""
    rooms = [f"codegen.{room}" for room in ROOMS[3:]]
    shared = {i.module for i in all_imports("codegen/checks")
              if any(is_within(i.module, room) for room in rooms)}
    assert shared == {"codegen.plan.operation_graph", "codegen.loops.collapse"}
    (names,) = ([alias.name for alias in node.names]
                for node in ast.walk(tree(ROOT / "codegen/checks/conflicts.py"))
                if isinstance(node, ast.ImportFrom)
                and node.module == "codegen.plan.operation_graph")
    assert names == ["OperationRow"]


def test_text_is_read_by_parsers():
    """Python's parser reads users' lines, and C's text is known to who writes it: no re is
    needed."""
    found = all_imports("codegen/emit", "codegen/trace", "codegen/explain", "codegen/ops",
                        "codegen/layouts", "codegen/graph", "codegen/loops", "codegen/plan")
    assert found and [str(i) for i in found if i.module == "re"] == []


def test_run_path_is_light():
    """Modules that ranks import load no heavy module; another test looks at sys.modules."""
    mine = [i for i in all_imports("spmd")
            if not i.lazy and not any(is_within(i.importer, heavy) for heavy in HEAVY)]
    heavy = [
        i for i in mine
        if is_within(i.module, "numpy")
        or (is_within(i.module, "codegen") and i.module not in LIGHT)
    ]
    assert mine and [str(i) for i in heavy] == []


def test_mpi_is_called_in_one_file():
    """The engine is compiled without any MPI; its functions come in through one table."""
    calls = re.compile(r"mpi(\.|->)(isend|issend|irecv|test|error_string|comm)\b")
    assert [name(p) for p in c_files() if calls.search(p.read_text())] == ["csrc/mpi.c"]
    assert [name(p) for p in c_files() if re.search(r"#include\s*.mpi", p.read_text())] == []


def test_manifest_imports_nothing_heavy():
    heavy = [
        str(i)
        for i in imports(ROOT / "codegen" / "image" / "manifest.py")
        if not i.lazy and (is_within(i.module, "numpy") or is_within(i.module, "codegen"))
        and i.module not in LIGHT
    ]
    assert heavy == []


def test_kernels_are_compiled_by_a_module_that_only_they_import():
    """numba takes longer to import than a small image takes to build."""
    found = [i for i in all_imports("codegen", "spmd") if is_within(i.module, ONLY["numba"][0])]
    assert found and all(i.lazy for i in found), list(map(str, found))


# Import statements inside functions, at most: for start-up time, and for what may be missing.
LAZY = {"codegen": 7, "spmd": 25}


@pytest.mark.parametrize("folder", LAZY)
def test_imports_inside_functions_have_a_reason(folder):
    found = {(i.importer, i.line) for i in all_imports(folder) if i.lazy}
    assert len(found) <= LAZY[folder], sorted(found)
    silent = [
        f"{name(p)}:{i.line}"
        for p in python_files(folder)
        for i in (imports(p) if p.name != "setup.py" else ())
        if i.lazy and "  # " not in p.read_text().splitlines()[i.line - 1]
    ]
    assert silent == [], "say on the line why the import is not at the top"


def circles() -> list[set[str]]:
    """The strongly connected components of what imports what, of more than one module (Tarjan)."""
    after: dict[str, set[str]] = {}
    for i in all_imports("codegen", "spmd"):
        named = {i.module, f"{i.module}.__init__"} & modules()
        after.setdefault(i.importer, set()).update(named - {i.importer})
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        path.append(module)
        for other in sorted(after.get(module, ())):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in path:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = path.index(module)
            found.append(set(path[at:]))
            del path[at:]

    for module in sorted(after):
        if module not in number:
            visit(module)
    return [circle for circle in found if len(circle) > 1]


def test_no_modules_import_each_other():
    """Not in a circle either, and not inside functions."""
    assert circles() == []


# ---- sizes


def test_lines_are_short():
    long = [
        f"{name(p)}:{k}"
        for p in python_files(*FOLDERS) + c_files()
        for k, line in enumerate(p.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert long == []


def test_functions_fit_a_screen():
    long = [
        f"{name(p)}:{node.lineno} {node.name}: {size} lines"
        for p in python_files(*FOLDERS)
        for node in functions(tree(p))
        if (size := (node.end_lineno or 0) - node.lineno + 1) > 60
    ]
    assert long == []


def test_c_functions_fit_a_screen():
    long = []
    for path in c_files():
        start = 0
        for k, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"\w.*\)\s*\{$|\{$", line):
                start = k
            elif line.startswith("}") and start:
                if k - start + 1 > 70:
                    long.append(f"{name(path)}:{start}")
                start = 0
    assert long == []


def test_module_docstrings():
    wrong = []
    for path in python_files(*FOLDERS):
        text = ast.get_docstring(tree(path), clean=False)
        if text is None:
            wrong.append(f"{name(path)}: none")
        elif len(text.strip().splitlines()) > 6 and name(path) not in GRAMMARS:
            wrong.append(f"{name(path)}: {len(text.strip().splitlines())} lines")
    assert wrong == []


# ---- words


def test_no_paths_of_one_machine():
    pattern = re.compile(r"/(?:work|root|home/\w+)/")
    files = [*python_files(*FOLDERS), *c_files(), *ROOT.glob("*.md"), *DOCS, ROOT / "Makefile"]
    found = [
        f"{name(p)}:{k}"
        for p in files
        for k, line in enumerate(p.read_text().splitlines(), 1)
        if pattern.search(line) and p != Path(__file__).resolve()
    ]
    assert found == []


def test_mpi_calls_of_the_engine_stand_in_one_file():
    users = [name(p) for p in c_files() if re.search(r"\bMPI_[A-Z][a-z]\w*\s*\(", p.read_text())]
    assert len([u for u in users if u.endswith(".c")]) <= 1


def test_map_lists_every_file():
    listed = set(re.findall(r"`([\w./-]+\.(?:py|c|h))`", code_map()))
    real = {name(p) for p in (*python_files("codegen", "spmd", "examples"), *c_files())
            if is_listed(p)}
    assert listed == real - {"setup.py"}
