"""Converted functions on plain Python values: the same results, exceptions and effects.

PYTEST_DONT_REWRITE: assert is compared too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from codegen.mesh import Axis, Mesh
from codegen.places import last
from codegen.trace.control import conversion
from codegen.trace.context import Context

# ruff: noqa
# mypy: ignore-errors


def early(n):
    """A chain of returns."""
    if n < 0:
        return "negative"
    if n == 0:
        return "zero"
    elif n == 1:
        return "one"
    m = n * 2
    if m > 10:
        if m > 20:
            return "huge"
        m += 1
    return m


def returns_nothing(n):
    if n:
        return
    n += 1


def partly(n):
    if n > 1:
        if n > 2:
            return "a"
    else:
        n = -n
    return n


def loops(n):
    out = []
    for i in range(n):
        if i % 2:
            continue
        for j in range(i):
            if j > 3:
                break
            if j == 2 and i == 6:
                continue
            out.append((i, j))
        else:
            out.append("all")
        if i > 8:
            break
    else:
        out.append("end")
    return out, i if n else None


def return_in_loops(n):
    for i in range(n):
        for j in range(n):
            if i * j == 6:
                return i, j
            while j:
                j -= 1
                if j == 7:
                    return "seven"
    return None


def whiles(n):
    k = 0
    out = []
    while True:
        k += 1
        if k == 3:
            continue
        if k > n:
            break
        out.append(k)
    while k > 0 and n:
        k -= 2
    else:
        out.append("done")
    return out, k


def walrus(n):
    out = []
    data = list(range(n))
    while (x := data.pop() if data else None) is not None:
        if (y := x * 2) > 6:
            continue
        out.append((x, y))
    if (z := len(out)) > 2:
        return z, [w for v in out if (w := v[0])], w
    elif (z := z + 10) > 11:
        return -z
    return out


def tries(n):
    log = []
    for i in range(n):
        try:
            if i == 1:
                continue
            if i == 4:
                break
            log.append(10 // (i - 2))
            if i == 5:
                return log
        except ZeroDivisionError as error:
            log.append(str(error))
            if n == 3:
                return "three", log
        else:
            log.append("else")
        finally:
            log.append("finally")
    return log


def finally_return(n):
    for i in range(n):
        try:
            return 1 // i
        except ZeroDivisionError:
            return "zero"
        finally:
            if n > 2:
                return "from finally"


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *_):
        self.log.append("out")
        return self.swallow


def withs(n):
    log = []
    for i in range(n):
        with Manager(log, True) as m:
            if i == 1:
                continue
            if i == 3:
                raise ValueError
            if i == 5:
                return log, m is not None
    with Manager(log):
        return log


def closures(n):
    count = 0
    fs = []

    def bump(k=1):
        nonlocal count
        count += k
        if count > 3:
            return "many"
        return count

    for i in range(n):
        fs.append(lambda i=i: (i, count))
        bump()
    return [f() for f in fs], bump(2), count


def generator(n):
    for i in range(n):
        if i == 2:
            continue
        got = yield i
        if got:
            return got
        while i > 3:
            yield -i
            break


def drive(n):
    g = generator(n)
    out = list(itertools.islice(g, 4))
    try:
        out.append(g.send("x"))
    except StopIteration as stop:
        out.append(stop.value)
    return out


def logic(n):
    seen = []

    def f(x):
        seen.append(x)
        return x

    a = f(n) and f(0) or f("") or f([]) or f(n + 1)
    b = not f(n) or f(3) and f(None)
    c = 0 < f(n) < f(5) <= f(7) != f(8)
    d = f(1) if f(n) > 2 else (f(2) if n else f(3))
    return a, b, c, d, seen, 1 < n > 2, n in (1, 2) in [True], n is not None is not True


def unbound(n):
    if n > 1:
        x = 1
    for q in range(n):
        y = q
    del n
    return x, y


def deleted(n):
    x = n
    for i in range(3):
        if i == n:
            del x
    return x


def matched(n):
    out = []
    for item in [n, (n, 2), {"k": n}, [1, 2, 3], "s"]:
        match item:
            case int() if n > 2:
                out.append("big")
                continue
            case 1 | 2:
                out.append("small")
            case (a, 2):
                out.append(a)
            case {"k": v, **rest}:
                if v == 4:
                    break
                out.append((v, rest))
            case [first, *others]:
                out.append(others)
            case _:
                return out, "rest"
    return out


def matched_values(n):
    """match statements that are if and elif: the subject is evaluated once."""
    asked = []
    for item in [n, None, "s", 2.0, (1, 2), n]:
        match asked.append(item) or item:
            case 0 | 3:
                asked.append("few")
            case None:
                continue
            case "s" if n > 2:
                return asked, "text"
            case 2:
                asked.append("two")
            case _ if n == 4:
                break
    match n:
        case 1:
            m = "one"
        case m:
            pass
    return asked, m


class Base:
    __secret = 3

    def value(self, n):
        return n + self.__secret


class Derived(Base):
    __other = 5

    def value(self, n):
        for i in range(n):
            __local = i
            if i > self.__other:
                return super().value(n), __local
        return super().value(__class__.__other), [super(Derived, self).value(k) for k in range(2)]


def methods(n):
    return Derived().value(n), functools.partial(Derived().value, n)()


def comprehensions(n):
    table = {i: [j for j in range(i) if j % 2 or i > 3] for i in range(n) if not i == 2}
    return table, {x for row in table.values() for x in row}, sum(i if i > 1 else -i for i in table)


def strings(n):
    return f"{n!r:>5} {'yes' if n else 'no'} {[k for k in range(n) if k and k > 1]}"


GLOBAL = 0


def globals_(n):
    global GLOBAL
    GLOBAL = 0
    for i in range(n):
        if i > 1:
            GLOBAL += i
    return GLOBAL


def unpacking(n):
    a, (b, *c) = n, range(n + 1)
    for k, (x, y) in enumerate(zip(c, c)):
        a, b = b, a + x * y
        c[k], d = d if k else 0, a
    return a, b, c, d


def raises(n):
    for i in range(n):
        if i == 3:
            raise ValueError(f"at {i}")
        assert i < 2 or n != 3, "assertion"
    return n


def keywords(n, /, a=1, *args, b, c=5, **kw):
    if n:
        a, b = b, a
    return n, a, args, b, c, kw


def call_keywords(n):
    return keywords(n, 2, 3, b=4, z=5), keywords(0, b=n)


def recursion(n):
    return 1 if n < 2 else n * recursion(n - 1) + (recursion(n - 2) if n % 2 else 0)


def local_class(n):
    class Point:
        """A user's dataclass with a docstring."""

        scale: int = n if n > 2 else 2

        def __init__(self, x):
            if x > 1:
                self.x = x
            else:
                self.x = -x

        @property
        def double(self):
            return self.x * self.scale if self.x else None

    return [Point(k).double for k in range(n)]


def annotated(n):
    total: int = 0
    for i in range(n):
        part: float
        part = i / 2
        if part > 1:
            total += 1
    return total


def imports(n):
    if n:
        import math as m
        from math import floor
    else:
        return None
    return m.pi, floor(n + 0.5)


def exceptions_chain(n):
    try:
        try:
            raise KeyError(n)
        except KeyError as e:
            if n > 1:
                raise ValueError from e
            return e.args
    except ValueError as e:
        return type(e.__cause__)


def deep_elif(n):
    if n == 0:
        return "0"
    elif n == 1:
        r = 1
    elif n == 2:
        r = 2
    elif n == 3:
        r = 3
    elif n == 4:
        r = 4
    elif n == 5:
        r = 5
    elif n == 6:
        r = 6
    elif n == 7:
        r = 7
    elif n == 8:
        r = 8
    elif n == 9:
        r = 9
    elif n == 10:
        r = 10
    elif n == 11:
        r = 11
    elif n == 12:
        r = 12
    elif n == 13:
        r = 13
    elif n == 14:
        r = 14
    elif n == 15:
        r = 15
    elif n == 16:
        r = 16
    elif n == 17:
        r = 17
    elif n == 18:
        r = 18
    elif n == 19:
        r = 19
    elif n == 20:
        r = 20
    elif n == 21:
        r = 21
    else:
        r = None
    return r


def too_deep(n):
    if n != 0:
        if n != 1:
            if n != 2:
                if n != 3:
                    if n != 4:
                        if n != 5:
                            if n != 6:
                                if n != 7:
                                    if n != 8:
                                        if n != 9:
                                            if n != 10:
                                                if n != 11:
                                                    if n != 12:
                                                        if n != 13:
                                                            if n != 14:
                                                                if n != 15:
                                                                    if n != 16:
                                                                        if n != 17:
                                                                            if n != 18:
                                                                                if n != 19:
                                                                                    if n != 20:
                                                                                        return (
                                                                                            "deep"
                                                                                        )
    return n


def walrus_while_else(n):
    out = []
    for i in range(n):
        while (k := i - len(out)) > 0:
            out.append(k)
            if k == 2:
                break
        else:
            continue
        break
    return out


def swallow(n):
    out = []
    for i in range(n):
        with Manager(out, True):
            if i % 2:
                raise KeyError(i)
            return out
        out.append("after")
    return out, "end"


FUNCTIONS = [
    f for f in list(globals().values())
    if callable(f) and getattr(f, "__module__", "") == __name__ and not isinstance(f, type)
    and f is not generator and f is not keywords
]


def outcome(f: Callable[..., Any], n: int) -> tuple[Any, ...]:
    try:
        return ("returned", f(n))
    except Exception as error:
        tb = last(error.__traceback__)
        return (type(error), str(error), tb.tb_lineno, tb.tb_frame.f_code.co_filename)


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_same_as_the_original(f: Callable[..., Any], capturing: bool) -> None:
    made = conversion.convert(f)
    assert made is not f or f is too_deep
    for n in range(13):
        expected = outcome(f, n)
        if capturing:
            with Context("test", Mesh((Axis("x"),))).active():
                got = outcome(made, n)
        else:
            got = outcome(made, n)
        assert got == expected, n


def test_identity() -> None:
    made = conversion.convert(early)
    assert made.__name__ == "early" and made.__doc__ == early.__doc__
    assert made.__qualname__ == early.__qualname__
    assert made.__code__.co_filename == early.__code__.co_filename
    assert conversion.convert(early) is made and conversion.convert(made) is made
    assert conversion.convert(len) is len and conversion.convert(dict) is dict
    assert conversion.convert(functools.wraps) is functools.wraps


def test_closure_is_shared() -> None:
    value = 1

    def read(n: int) -> int:
        if n:
            return value
        return -value

    made = conversion.convert(read)
    value = 5
    assert made(1) == 5 and made(0) == -5


def decorated_by(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return f(*args)

    return call


@decorated_by
def decorated(n: int) -> Any:
    return "yes" if n else "no"


def test_decorators_and_lambdas() -> None:
    assert conversion.convert(decorated)(1) == "yes"
    f, g = lambda x: x if x else 7, lambda x: (lambda y: y + 1 if y > x else x)(x)
    assert [conversion.convert(f)(k) for k in (0, 2)] == [7, 2]
    assert conversion.convert(g)(3) == g(3)
    assert conversion.convert(lambda: 1) is not None


def test_generators_stay_lazy() -> None:
    it: Iterator[int] = conversion.convert(generator)(9)
    assert next(it) == 0 and next(it) == 1


def test_no_source() -> None:
    space: dict[str, Any] = {}
    exec("def f(n):\n    return 1 if n else 2", space)
    assert conversion.convert(space["f"]) is space["f"]
