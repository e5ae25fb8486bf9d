"""What modules of the tracer need of modules above them: every late binding, made here alone.

Modules import downwards only. Where one below has to call one above, it keeps a table, which this
file fills: who needs what stands on the left, who has it on the right. Importing it is enough;
program.py does. (Beside the tracer: Exprs are spelled by what codegen/symbolic/expr.py registers,
and spmd/__init__.py says who reads files of states, as the compiler knows no files.)
"""

from __future__ import annotations

from codegen.trace import blocked, methods
from codegen.trace.arithmetic import NumberMethods
from codegen.trace.array import Array
from codegen.trace.control import conversion, hooks
from codegen.trace.derive import control_flow, exchanges, recompute, reverse, shard_maps
from codegen.trace.number import Number, bounded_dim
from codegen.trace.numpy import composite, elementwise, linear, special
from codegen.trace.numpy.masks import Chosen
from codegen.user import dims

# What converted functions call in the place of if, for, while, and of other functions.
conversion.runtime = hooks

# What a named dim is in a program that is captured: a symbolic number.
dims.SYMBOLIC.append(bounded_dim)

# Ufuncs that are made of others, by NumPy's or SciPy's name.
elementwise.COMPOSITE.update(composite.UFUNCS | special.UFUNCS)

# np.linalg's functions of split matrices, which are programs in the language itself.
linear.BLOCKED.update(blocked.FUNCTIONS)

# Ways back through ops that have regions or exchange, and what of their results changes with what
# is differentiated by; all other kinds have the rule `vjp`.
for _module in (control_flow, exchanges, recompute, shard_maps):
    reverse.RULES.update(_module.WAYS_BACK)
for _module in (control_flow, recompute, shard_maps):
    reverse.ACTIVE.update(_module.ACTIVE_RESULTS)

# Operators and methods, which are NumPy's functions of what has them.
methods.give(Array, methods.ArrayMethods)
methods.give(Number, NumberMethods)
methods.give(Chosen, methods.ChosenMethods)
methods.refuse_setting(Array)
