"""The syntax tree of a function with its control flow handed to hooks.py.
    if c: A else: B    for arm in if_(c, names, …):  if arm == 0: A  else: B
    for x in it: A     for x in for_(it, names, …): A
    while c: A         for _ in while_(lambda: c, names, …): A
Bodies stay in the user's frame, run as often as the iterator says; `names` gives it the variables.
Always holds: positions are the user's; hidden names begin and end with two underscores.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from codegen.trace.control.exits import (
    RESULT,
    Lowering,
    Stmts,
    cannot_lower,
    located,
    none_of,
    own_nodes,
)
from codegen.trace.control.matches import as_ifs
from codegen.trace.control.variables import annotate, bound_names, chain, loaded_names, nonlocals
from codegen.user.sameness import RUNTIME

_NAMES, _ARM, _ITEM, _ERROR = "__names__", "__arm__", "__item__", "__error__"
_COMPILED_ELSEWHERE = {"kernel", "njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil"}
_BINDS = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_module(
    node: _Function | ast.Lambda, free: Sequence[str], class_name: str | None
) -> ast.Module:
    """Return a module with a factory of the rewritten function; `free` are its variables from
    outside."""
    node = _copy(node)
    _bare_arguments(node.args)
    inner: ast.stmt
    if isinstance(node, ast.Lambda):
        inner = ast.Expr(_Rewriter(class_name).visit(node))
    else:
        node.decorator_list, node.returns = [], None
        inner = _rewrite_function(node, class_name, outer=True)
    body = [inner]
    if class_name is not None:  # private names are spelt with their class
        body = [ast.ClassDef(class_name, [], [], [inner], [])]
    own_name = class_name or getattr(inner, "name", "")
    if own_name and own_name not in free:  # the factory must not hide the name from the function
        body.insert(0, ast.Global([own_name]))
    arguments = ast.arguments([], [ast.arg(n) for n in (*free, RUNTIME)], None, [], [], None, [])
    factory = ast.FunctionDef("__factory__", arguments, body, [], None)
    return ast.Module([located(node, factory)], [])


def _copy(node: Any) -> Any:
    """Return a deep copy; the parsed file is kept for the next function."""
    if isinstance(node, list):
        return [_copy(n) for n in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{f: _copy(v) for f, v in ast.iter_fields(node)})
    for attribute in node._attributes:
        if hasattr(node, attribute):
            setattr(new, attribute, getattr(node, attribute))
    return new


def _bare_arguments(args: ast.arguments) -> None:
    """Removes defaults and annotations, which the original function has evaluated already."""
    args.defaults, args.kw_defaults = [], [None] * len(args.kwonlyargs)
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            arg.annotation = None


def _rewrite_function(node: Any, class_name: str | None, outer: bool = False) -> Any:
    """Return a def with its body rewritten; decorators, defaults and annotations are the caller's.
    outer: it stands in no other that is rewritten, so that it may be a program, and no helper of a
    kernel."""
    if any(_last_name(d) in _COMPILED_ELSEWHERE for d in node.decorator_list):
        return node
    reason = cannot_lower(node.body)
    doc: Stmts = []
    if ast.get_docstring(node, clean=False) is not None:
        doc, node.body = node.body[:1], node.body[1:]
    body: Stmts = node.body
    if not reason and body:
        body = Lowering().function(as_ifs(body))
        annotate(body)
    rewriter = _Rewriter(class_name, reason, [node.args, *body], outer)
    body = rewriter.block(body)
    if rewriter.state:
        body = _with_names(node, body, rewriter)
    node.body = doc + body
    return node


def _with_names(node: _Function, body: Stmts, rewriter: _Rewriter) -> Stmts:
    """Return the body with `Names` made first, and a handler that explains why a name has no
    value."""
    first = [s for s in body if isinstance(s, (ast.Global, ast.Nonlocal))]
    rest = [s for s in body if s not in first] or [ast.Pass()]
    cells = ast.Lambda(_no_arguments(), ast.Tuple([_load(n) for n in rewriter.state], ast.Load()))
    make = ast.Assign([_store(_NAMES)], _runtime("Names", cells))
    explain = ast.Expr(_runtime("explain", _load(_ERROR), _load(_NAMES)))
    caught = ast.ExceptHandler(_attribute("NameError"), _ERROR, [explain, ast.Raise()])
    return [*first, located(node, make), located(node, ast.Try(rest, [caught], [], []))]


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# ---- small trees -------------------------------------------------------------------------------


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.expr:
    return ast.Name(name, ast.Store())


def _attribute(name: str) -> ast.expr:
    return ast.Attribute(_load(RUNTIME), name, ast.Load())


def _runtime(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(_attribute(name), list(args), [])


def _constant(value: Any) -> ast.expr:
    return ast.Constant(value)


def _no_arguments() -> ast.arguments:
    return ast.arguments([], [], None, [], [], None, [])


def _later(value: ast.expr) -> ast.expr:
    return located(value, ast.Lambda(_no_arguments(), value))


def _texts(node: ast.expr) -> ast.expr:
    """Return an expression that is printed, with its f-strings as calls, which take what only the
    run knows."""
    if isinstance(node, ast.IfExp):
        node.body, node.orelse = _texts(node.body), _texts(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        node.left, node.right = _texts(node.left), _texts(node.right)
    elif isinstance(node, ast.JoinedStr):
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                spec = part.format_spec or ast.Constant("")
                kind = ast.Constant(part.conversion)
                part = located(part, ast.Tuple([part.value, spec, kind], ast.Load()))
            parts.append(part)
        return located(node, _runtime("fstring", *parts))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
        return located(node, _runtime("percent_text", node.left, node.right))
    elif isinstance(node, ast.Call):
        return _text_call(node)
    return node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _text_call(node: ast.Call) -> ast.expr:
    """Return a call inside print or assert, with str, repr, ascii, format and text.format replaced
    by functions that also take values of the run."""
    function = node.func
    if isinstance(function, ast.Attribute) and _is_text(function.value):
        name, first = "formatted" * (function.attr == "format"), function.value
    else:
        texts = ("str", "repr", "ascii", "format")
        name, first = "text_of" * (getattr(function, "id", "") in texts), function
    if name:
        node = located(node, ast.Call(_attribute(name), [first, *node.args], node.keywords))
    return node


def _is_ours(node: ast.expr) -> bool:
    """Return whether a function that is called is one of hooks.py."""
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == RUNTIME


class _Rewriter(ast.NodeTransformer):
    """Statements and expressions of one function; nested ones get a rewriter of their own.

    reason: why control flow stays Python's own ("" where it is compiled). state: names to keep.
    """

    def __init__(
        self, class_name: str | None, reason: str = "", scope: Sequence[ast.AST] = (),
        outer: bool = False,
    ) -> None:
        self.class_name = class_name
        self.outer = outer
        self.reason = reason
        self.state: dict[str, None] = {}
        self.conditional = 0  # how many `if`s and loops are around
        # variables of this function that a call of a nested one may rebind
        own = set(bound_names(scope)) | set(nonlocals(list(own_nodes(scope)), deep=False))
        self.shared = sorted(own & set(nonlocals(scope)))
        self.elsewhere = {
            name for node in own_nodes(scope)
            if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }

    def block(self, stmts: Stmts) -> Stmts:
        out: Stmts = []
        for s in stmts:
            new = self.visit(s)
            out += new if isinstance(new, list) else [new]
        return out

    def _names(self, *nodes: ast.AST) -> tuple[ast.expr, ast.expr]:
        """Return, as constants, the names that the nodes bind, and those through which they may
        change data."""
        bound = dict.fromkeys(n for n in bound_names(nodes) if n != _ITEM)
        bound |= dict.fromkeys(self.shared)
        touched = dict.fromkeys(
            n for n in loaded_names(nodes) if n not in bound and not n.startswith("__")
        )
        self.state |= bound | touched
        return tuple(  # type: ignore[return-value]
            _constant(tuple(self._spelt(n) for n in names)) for names in (bound, touched)
        )

    def _spelt(self, name: str) -> str:
        """Return a private name as the compiler spells it."""
        if self.class_name and name.startswith("__") and not name.endswith("__"):
            stripped = self.class_name.lstrip("_")
            return f"_{stripped}{name}" if stripped else name
        return name

    # ---- statements -----------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> Any:
        if self.reason:
            node.test = self._plain(self._test(node.test), "if")
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
            return node
        bound, touched = self._names(node)
        kept = self._kept(node) if hasattr(node, "kept") else bound
        tests, arms, rest = [node.test], [node.body], node.orelse
        while len(rest) == 1 and isinstance(rest[0], ast.If):  # elif: no deeper nesting
            if _stays(rest[0].test):
                break
            tests.append(rest[0].test)
            arms.append(rest[0].body)
            rest = rest[0].orelse
        self.conditional += 1
        chosen: Stmts = self.block(rest)
        for k in reversed(range(len(arms))):
            is_k = ast.Compare(_load(_ARM), [ast.Eq()], [ast.Constant(k)])
            chosen = [located(arms[k][0], ast.If(is_k, self.block(arms[k]), chosen))]
        self.conditional -= 1
        first, *others = [self._test(t) for t in tests]
        call = _runtime(
            "if_", first, _load(_NAMES), bound, touched, kept, *map(_later, others))
        return located(node, ast.For(_store(_ARM), located(first, call), chosen, []))

    def visit_For(self, node: ast.For) -> Any:
        if self.reason:
            return self.generic_visit(node)
        bound, touched = self._names(node)
        flags: tuple[str, ...] = getattr(node, "flags", ())
        hint = node.target.id if isinstance(node.target, ast.Name) else ""
        self.conditional += 1
        if flags:
            item = f"__item{node.number}__"  # type: ignore[attr-defined]
            bind = ast.Assign([node.target], _load(item))
            guarded = ast.If(none_of(flags), [located(node.target, bind), *node.body], [])
            if hasattr(node, "lasting"):
                guarded.kept = node.lasting  # type: ignore[attr-defined]
            node.body = [self.visit(located(node.target, guarded))]
            node.target = located(node.target, _store(item))
        else:
            node.body = self.block(node.body)
            node.target = self.visit(node.target)
        self.conditional -= 1
        node.body += self._leave(node, flags)
        place = node.iter
        call = _runtime(
            "for_", self.visit(node.iter), _load(_NAMES), bound, touched,
            _constant(flags),
            ast.Constant(node.number),  # type: ignore[attr-defined]
            ast.Constant(hint), self._kept(node), self._fresh(node),
        )
        node.iter = located(place, call)
        return located(node, node)

    def visit_While(self, node: ast.While) -> Any:
        if self.reason:
            node.test = self._plain(self._test(node.test), "while")
            node.body, node.orelse = self.block(node.body), self.block(node.orelse)
            return node
        bound, touched = self._names(node)
        flags: tuple[str, ...] = getattr(node, "flags", ())
        endless = isinstance(node.test, ast.Constant) and node.test.value and not flags
        if endless and not any(isinstance(n, ast.Raise) for n in own_nodes(node.body)):
            return [located(node.test, ast.Expr(_runtime("endless"))), node]
        self.conditional += 1
        body = self.block(node.body)
        self.conditional -= 1
        test = _later(self._test(node.test))
        call = _runtime(
            "while_", test, _load(_NAMES), bound, touched, _constant(flags),
            ast.Constant(node.number),  # type: ignore[attr-defined]
            self._kept(node), self._fresh(node),
        )
        loop = ast.For(_store(_ITEM), located(node.test, call), body + self._leave(node, flags), [])
        return located(node, loop)

    def _kept(self, node: Any) -> ast.expr:
        return _constant(tuple(self._spelt(n) for n in getattr(node, "kept", ())))

    def _fresh(self, node: Any) -> ast.expr:
        """Return the variables that no turn reads from the turn before; without those that code
        behind the loop may read after an early exit."""
        lasts = node.kept if getattr(node, "flags", ()) else ()
        return _constant(tuple(
            self._spelt(n) for n in getattr(node, "fresh", ()) if n not in lasts))

    def _leave(self, node: Any, flags: Sequence[str]) -> Stmts:
        """Return a break under an `if` that asks for the flags; a capture of the body never takes
        it."""
        if not flags:
            return []
        number = ast.Constant(node.number)
        test = _runtime("left", _load(_NAMES), number, *map(_load, flags))
        return [located(node, ast.If(test, [ast.Break()], []))]

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.BoolOp):
            return self.visit(_as_if(node.value))
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is None or (isinstance(node.value, ast.Name) and node.value.id == RESULT):
            return node
        return self._returned(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == RESULT:
            return self._returned(node)
        return self._stored(node, node.targets)

    def _returned(self, node: ast.Return | ast.Assign) -> ast.stmt:
        """Note which of its expressions the function returns, for errors in what a program does."""
        assert node.value is not None
        value = self.visit(node.value)
        node.value = located(value, _runtime("returned", value)) if self.outer else value
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        new = self._stored(node, [node.target])
        if not isinstance(node.target, ast.Name):
            return new
        check = _runtime("target", _load(node.target.id), ast.Constant(node.target.id))
        return [located(node.target, ast.Expr(check)), *(new if isinstance(new, list) else [new])]

    def visit_Delete(self, node: ast.Delete) -> Any:
        return self._stored(node, node.targets)

    def _stored(self, node: ast.stmt, targets: Sequence[ast.expr]) -> Any:
        """Return the statement, then a call that notes what it changed outside of the function."""
        changed: dict[str, tuple[ast.expr, ...]] = {}
        for target in own_nodes(targets):
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                name, steps = chain(target.value)
                if name and not isinstance(target.ctx, ast.Load):
                    changed[ast.unparse(target.value)] = (_load(name), *map(ast.Constant, steps))
            elif isinstance(target, ast.Name) and target.id in self.elsewhere:
                changed[target.id] = (ast.Constant(self._spelt(target.id)),)
        new = self.generic_visit(node)
        return [new, *(located(node, ast.Expr(_runtime("stored", *x))) for x in changed.values())]

    def visit_Match(self, node: ast.Match) -> Any:
        """Rewrite a match statement. Python itself compares types, and True and False: it does not
        know ours."""
        patterns = [p for case in node.cases for p in ast.walk(case.pattern)]
        asks = any(isinstance(p, ast.MatchClass) or (
            isinstance(p, ast.MatchSingleton) and p.value is not None) for p in patterns
        )
        new: ast.Match = self.generic_visit(node)  # type: ignore[assignment]
        if asks:
            new.subject = located(new.subject, _runtime("matched", new.subject))
        return new

    def visit_Raise(self, node: ast.Raise) -> Any:
        new = self.generic_visit(node)
        if self.reason or not self.conditional or node.exc is None:
            return new
        return [located(node, ast.Expr(_runtime("raising", _load(_NAMES)))), new]

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Rewrite an assert, which is Python's own where the test is known; else a condition of the
        program."""
        source = ast.Constant(ast.unparse(node.test))
        message = self.visit(_texts(_copy(node.msg))) if node.msg else ast.Constant("")
        test = _runtime("asserted", self._test(node.test), source, _later(message))
        node.test = located(node.test, test)
        node.msg = self.visit(node.msg) if node.msg else None
        return node

    def _plain(self, test: ast.expr, statement: str) -> ast.expr:
        words = (ast.Constant(statement), ast.Constant(self.reason))
        return located(test, _runtime("plain", test, *words))

    # ---- scopes ---------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: _Function) -> Any:
        if not any(_last_name(d) in _COMPILED_ELSEWHERE for d in node.decorator_list):
            self._defaults(node.args)
            node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return _rewrite_function(node, self.class_name)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]

    def visit_Starred(self, node: ast.Starred) -> Any:
        new: ast.Starred = self.generic_visit(node)  # type: ignore[assignment]
        if isinstance(new.ctx, ast.Load):
            new.value = located(new.value, _runtime("each", new.value))
        return new

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        new: ast.comprehension = self.generic_visit(node)  # type: ignore[assignment]
        new.iter = located(new.iter, _runtime("each", new.iter))
        new.ifs = [located(test, _runtime("chosen", test)) for test in new.ifs]
        return new

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self._defaults(node.args)
        node.body = _Rewriter(self.class_name, self.reason).visit(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Rewrite the methods of a class; the statements of the class body stay as they are."""
        for k, s in enumerate(node.body):
            if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
                node.body[k] = _rewrite_function(s, node.name)
        return node

    # ---- expressions ----------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        if _is_ours(node.func):
            node.args = [self.visit(a) for a in node.args]
            return node
        if _last_name(node.func) == "print":
            node.args = [_texts(a) for a in node.args]
        is_super = isinstance(node.func, ast.Name) and node.func.id == "super"
        if _last_name(node.func) in _COMPILED_ELSEWHERE:  # np.vectorize(lambda a: ...)
            kept, node.args = node.args, [ast.Constant(None) if isinstance(a, ast.Lambda) else a
                                          for a in node.args]
            self.generic_visit(node)
            node.args = [a if isinstance(a, ast.Lambda) else b for a, b in zip(kept, node.args)]
        else:
            self.generic_visit(node)
        if not is_super:
            node.func = located(node.func, _runtime("call", node.func))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        text = ast.unparse(node.value) if not isinstance(node.ctx, ast.Load) else ""
        self.generic_visit(node)
        if text:
            node.value = located(node.value, _runtime("target", node.value, ast.Constant(text)))
        elif not isinstance(node.value, ast.Constant):
            node.value = located(node.value, _runtime("indexed", node.value))
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        new: ast.FormattedValue = self.generic_visit(node)  # type: ignore[assignment]
        if new.conversion != -1:
            new.value = located(new.value, _runtime("converted", new.value))
        return new

    def visit_BinOp(self, node: ast.BinOp | ast.UnaryOp) -> Any:
        return located(node, _runtime("fresh", self._operands(node)))

    def _operands(self, node: ast.expr) -> ast.expr:
        """Return the node with its operands visited; inner operators are not wrapped, their results
        are not kept."""
        if isinstance(node, ast.BinOp):
            node.left, node.right = self._operands(node.left), self._operands(node.right)
            if isinstance(node.op, ast.Mod) and _is_text(node.left):
                return located(node, _runtime("percent", node.left, node.right))
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            node.operand = self._operands(node.operand)
        else:
            return self.visit(node)  # type: ignore[no-any-return]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        return self._logic(node, ("and_", "or_"), self.visit)

    def _test(self, node: ast.expr) -> Any:
        """Return an expression whose truth alone is asked: `and`, `or` in it need not give an
        operand."""
        if isinstance(node, ast.BoolOp):
            return self._logic(node, ("both", "either"), self._test)
        return self.visit(node)

    def _logic(
        self, node: ast.BoolOp, names: tuple[str, str], visit: Callable[[ast.expr], ast.expr]
    ) -> ast.expr:
        is_and = isinstance(node.op, ast.And)
        first, *rest = node.values = [visit(v) for v in node.values]
        if not any(map(_stays, rest)):
            return located(node, _runtime(names[not is_and], first, *map(_later, rest)))
        node.values[:-1] = [_known(v, "and" if is_and else "or") for v in node.values[:-1]]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            return self.visit_BinOp(node)
        return located(node, _runtime("not_", self._test(node.operand)))

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        second, *rest = node.comparators
        among = any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
        if not (rest or among):
            return located(node, _runtime("fresh", node))
        if any(map(_stays, rest)):
            return node
        ops = _constant(tuple(type(op).__name__ for op in node.ops))
        return located(node, _runtime("compare", ops, node.left, second, *map(_later, rest)))

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test, body, orelse = self._test(node.test), self.visit(node.body), self.visit(node.orelse)
        if _stays(body) or _stays(orelse):
            return located(node, ast.IfExp(_known(test, "if"), body, orelse))
        return located(node, _runtime("ifexp", test, _later(body), _later(orelse)))


def _as_if(node: ast.BoolOp) -> ast.If:
    """Return the statement `a and b`, whose value nobody reads: `if a: b`; `a or b`: `if not a:
    b`."""
    *tests, last = node.values
    test = tests[0] if len(tests) == 1 else located(node, ast.BoolOp(node.op, tests))
    if isinstance(node.op, ast.Or):
        test = located(test, ast.UnaryOp(ast.Not(), test))
    return located(node, ast.If(test, [located(last, ast.Expr(last))], []))


def _known(node: ast.expr, operator: str) -> ast.expr:
    """Wraps a value that must be known, because the operand after it cannot be put in a lambda."""
    return located(node, _runtime("known", node, ast.Constant(operator)))


def _stays(node: ast.expr) -> bool:
    """Return whether an expression binds or waits, which a lambda around it would change."""
    return any(isinstance(n, _BINDS) or getattr(n, "is_async", 0) for n in own_nodes([node]))
