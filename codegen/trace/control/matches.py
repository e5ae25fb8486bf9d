"""match statements that compare with values only, as if and elif: these are compiled.

In: statements of a function. Out: the same, without such match statements. Others stay Python's
own: patterns of sequences, mappings, classes, True and False.
Always holds: the subject is evaluated once, before the first comparison.
"""

from __future__ import annotations

import ast

from codegen.trace.control.exits import Stmts, assign, located

_SUBJECT = "__subject{}__"


def as_ifs(stmts: Stmts) -> Stmts:
    """Return statements with `match x: case 1: …` as `if x == 1: …`."""
    return _Matches().block(stmts)


class _Matches(ast.NodeTransformer):
    """The match statements of one function; nested functions have their own."""

    def __init__(self) -> None:
        self.count = 0

    def block(self, stmts: Stmts) -> Stmts:
        out: Stmts = []
        for s in stmts:
            lowered = self.visit(s)
            out += lowered if isinstance(lowered, list) else [lowered]
        return out

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Match(self, node: ast.Match) -> ast.stmt | Stmts:
        self.count += 1
        name = _SUBJECT.format(self.count)
        self.generic_visit(node)
        tests = [test for case in node.cases if (test := _test(case, name)) is not None]
        if len(tests) < len(node.cases):
            return node
        rest: Stmts = []
        for case, test in zip(reversed(node.cases), reversed(tests)):
            always = isinstance(test, ast.Constant)
            rest = case.body if always else [located(case.pattern, ast.If(test, case.body, rest))]
            bound = case.pattern.name if isinstance(case.pattern, ast.MatchAs) else None
            if bound:  # before the guard, which may read it
                rest = [assign(bound, ast.Name(name, ast.Load()), case.body[0]), *rest]
        return [assign(name, node.subject, node), *rest]


def _test(case: ast.match_case, name: str) -> ast.expr | None:
    """Return the test of a case, True if it always holds; None if only Python knows it."""
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return case.guard or ast.Constant(True)
    values = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
    tests: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.MatchValue):
            compared = ast.Compare(ast.Name(name, ast.Load()), [ast.Eq()], [value.value])
        elif isinstance(value, ast.MatchSingleton) and value.value is None:
            compared = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [ast.Constant(None)])
        else:
            return None
        tests.append(located(pattern, compared))
    test = tests[0] if len(tests) == 1 else located(pattern, ast.BoolOp(ast.Or(), tests))
    if case.guard is None:
        return test
    return located(pattern, ast.BoolOp(ast.And(), [test, case.guard]))
