"""The map of the code: a table for each folder, a row per file: its docstring's first sentence.

In: the sources. Out: Markdown, which docs/generate.py writes into docs/reference/code-map.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Title, where its files are, files that come first because others are read after them.
GROUPS = (
    ("The compiler", ("codegen/*.py",), "compile pipeline errors dtypes mesh"),
    ("Levels: grammars, their texts, walks over them", ("codegen/ir/*.py",),
     "graph loops plan graph_text plan_text"),
    ("Symbolic integers and proofs", ("codegen/symbolic/*.py",), "expr terms bounds prove"),
    ("Ops: one class each", ("codegen/ops/*.py",), "__init__ kind"),
    ("What users write, read alike by tracer and oracles", ("codegen/user/*.py",), ""),
    ("Source to Graph", ("codegen/trace/*.py",), "program context api"),
    ("Source to Graph: Python's control flow and state", ("codegen/trace/control/*.py",),
     "conversion hooks"),
    ("Source to Graph: functions that call themselves", ("codegen/trace/control/recursion/*.py",),
     "decorator captured basic_blocks stack_machine"),
    ("Source to Graph: NumPy", ("codegen/trace/numpy/*.py",), "dispatch"),
    ("Source to Graph: derivatives", ("codegen/trace/derive/*.py",), "derivatives reverse"),
    ("Source to Graph: members of a batch", ("codegen/trace/batching/*.py",), "vmap batch"),
    ("Source to Graph: what ranks do together", ("codegen/trace/ranks/*.py",), ""),
    ("Room 1, graph: rewrites of the Graph and of the Program", ("codegen/graph/*.py",), "builder"),
    ("Room 2, layouts: where arrays lie, and what it costs", ("codegen/layouts/*.py",),
     "partition demands localize parts search costs"),
    ("Room 3, loops: nests, buffers, and how they run", ("codegen/loops/*.py",),
     "to_loops fuse assign_buffers schedule"),
    ("Room 4, plan: phases and exchanges in order", ("codegen/plan/*.py",), "to_plan"),
    ("Room 5, checks: what must hold, while building and while running", ("codegen/checks/*.py",),
     "check_graph check_loops check_memory check_plan"),
    ("Why a program is as it is", ("codegen/explain/*.py",), ""),
    ("Plan to C", ("codegen/emit/*.py",), "image"),
    ("What ranks that exchange must agree on", ("codegen/verify/*.py",),
     "table rows terms pairs small landing"),
    ("The image as a file", ("codegen/image/*.py",), "manifest"),
    ("Oracles", ("codegen/oracle/*.py",), "eager interpret"),
    ("What users import and run", ("spmd/*.py",), "__main__ cli"),
    ("Optimizers", ("spmd/optim/*.py",), "__init__ transformation optimizers"),
    ("Schedules of pipelines", ("spmd/schedules/*.py",),
     "__init__ making_schedules pipeline_schedule actions built_in tick_formulas schedule_tables"),
    ("Pipelines: layers on different ranks", ("spmd/pipelining/*.py",),
     "__init__ training_pipeline stage_cuts flat_buffers stage_code stage_rows tick_tables ticks "
     "flight"),
    ("Networks", ("spmd/nn/*.py",), "__init__"),
    ("Preparing data", ("spmd/data/*.py",), "__init__ pipelines computing drawing settings"),
    ("Launching", ("spmd/launch/*.py", "spmd/engine/*.py"),
     "lifecycle run options job processes hosts"),
    ("Feeding: the machine, and processes started on it",
     ("spmd/feeding/*.py", "spmd/feeding/host/*.py"), "__init__"),
    ("Feeding: messages, sockets, keys", ("spmd/feeding/messages/*.py",), "wire field_kinds"),
    ("Feeding: what is made of work", ("spmd/feeding/results/*.py",), "evaluating"),
    ("Feeding: workers and their agent", ("spmd/feeding/workers/*.py",), "worker agent"),
    ("Feeding: the scheduler", ("spmd/feeding/scheduling/*.py",), "scheduler assignment"),
    ("Feeding: what is seen of a scheduler", ("spmd/feeding/status/*.py",), "overview"),
    ("Feeding: clients, which submit and open pipelines", ("spmd/feeding/clients/*.py",), "client"),
    ("Feeding: runners of jobs", ("spmd/feeding/jobs/*.py",), "runner"),
    ("Feeding: consumers, which fill the rings of ranks", ("spmd/feeding/consumers/*.py",),
     "pipeline_supply consumer piece_ledger"),
    ("Feeding: what starts it", ("spmd/feeding/starting/*.py",),
     "connect local_feeding scheduler_process"),
    ("Serving: images over HTTP and gRPC, and clients that call them", ("spmd/serving/*.py",),
     "__init__ serve_command web_application grpc_service inference_server model_repository "
     "served_models served_job call_queue joined_calls infer_messages tensors"),
    ("Files of arrays", ("spmd/files/*.py",), "inputs"),
    ("Verifying images", ("spmd/verify/*.py",), "images"),
    ("Measuring", ("spmd/bench/*.py",), "collectives"),
    ("Engine, and headers of images", ("csrc/*.h", "csrc/*.c"), "spmd_image engine parts"),
    ("Measuring beside the engine", ("csrc/bench/*.h", "csrc/bench/*.c"), "measure"),
    ("Examples", ("examples/*.py", "examples/pipelines/*.py"), ""),
)


def first_sentence(path: Path) -> str:
    source = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        comment = re.match(r"/\*(.*?)\*/", source, re.DOTALL)
        text = re.sub(r"\n \* ?", "\n", comment[1]).strip() if comment else ""
    text = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<![ (][A-Z])(?<!\.)\.(?:\s|$)", text)[0].replace("|", "\\|")


def is_listed(path: Path) -> bool:
    """Not the __init__.py of a package that holds nothing but its docstring."""
    return path.name != "__init__.py" or len(path.read_text().splitlines()) > 2


def code_map() -> str:
    """Return the map as Markdown."""
    tables = []
    for title, patterns, first in GROUPS:
        order = {stem: k for k, stem in enumerate(first.split())}
        files = [p for pattern in patterns for p in ROOT.glob(pattern) if is_listed(p)]
        files.sort(key=lambda p: (p.parent, order.get(p.stem, len(order)), p.name))
        rows = [f"| `{p.relative_to(ROOT).as_posix()}` | {first_sentence(p)} |" for p in files]
        tables.append("\n".join([f"## {title}", "", "| file | what it is |", "|---|---|", *rows]))
    return "\n\n".join(tables)
