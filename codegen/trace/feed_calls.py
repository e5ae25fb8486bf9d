"""spmd.feed: streams of batches that come while the program runs, and what is sent back to them.

Always holds: a feed is declared once; all of its batches have the same fields, and dim 0 of each is
the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from codegen.errors import ProgramError, ShapeError, TracedValueError
from codegen.graph.feed_answers import unanswerable
from codegen.ir.graph import ArrayType, Feed, Module, Op, Shape, layout_text, walk
from codegen.mesh import Layout, local_extent
from codegen.ops import More, Send, Take
from codegen.ops.batches import Homes
from codegen.ops.kind import layout_of as lying
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, local_type, wrap
from codegen.trace.context import Context, require_context
from codegen.trace.control.captured_loops import Counter, LiveOut, Loop
from codegen.trace.control.conversion import in_a_for_statement
from codegen.trace.control.loop_statements import passes
from codegen.trace.declare import shape_of
from codegen.trace.numpy.elementwise import same_extent, shape_text
from codegen.trace.ranks.layout_forms import by_rules, layout_of
from codegen.trace.state import Code
from codegen.user import whole_batches
from codegen.user.numbers import element_type
from codegen.user.sameness import check_same
from codegen.user.spec import Spec


class Stream:
    """A stream of batches, as spmd.feed returns it.

    `feed.next()` takes the next batch, `feed.more()` says whether there is one, `for b in feed:`
    takes all, `feed.send(values)` gives values back to whoever made the batch.
    """

    def __init__(self, declared: Feed, fields: Mapping[str, Any]) -> None:
        self.declared = declared
        self._batch = whole_batches.batch_maker(declared.name, fields)

    @property
    def name(self) -> str:
        return self.declared.name

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {t}" for name, t in self.declared.fields)
        return f'feed("{self.name}" of {fields})'

    def next(self) -> Any:
        """Take the next batch: `b.x` is the array of field x, of which each rank has its part. It
        waits until the batch is there. Where the stream has ended, the run ends with a message.

        Inside a shard_map, `b.x` is this rank's own block, as the field's layout cuts it."""
        context = self._context("next")
        names, types = zip(*self.declared.fields, strict=True)
        homes: Homes = ()
        if context.rank_view:
            homes = tuple((t.shape, lying(t)) for t in types)
            types = tuple(local_type(context.mesh, t) for t in types)
        taken = context.emit(Take(self.name, names, types, homes), names=names)
        return self._batch({k: wrap(context, v, scalar=False)
                            for k, v in zip(names, taken, strict=True)})

    def more(self) -> Array:
        """Return whether the stream has a next batch, the same on all ranks: `while feed.more():
        …`."""
        context = self._context("more")
        return wrap(context, context.emit_one(More(self.name)))

    def send(self, *values: Any, **named: Any) -> None:
        """Send arrays with a row for each place of the batch that was taken last back to whoever
        made it: `feed.send(action)`, `feed.send(action=a, value=v)`. Each may be a tree of dicts,
        lists and tuples: `feed.send({"push": p, "turn": t})`. ShapeError for other shapes.

        Inside a shard_map, a rank hands over the rows of its own block."""
        context = self._context("send")
        (_, first), *_ = self.declared.fields
        batch, sent, layouts, homes = first.shape[0], [], [], []
        own = local_extent(context.mesh, batch, self._answered())
        fields = whole_batches.sent_fields(self.name, values, named)
        for name, x in fields.items():
            array = as_array(x)
            sent.append(array.read())
            layouts.append((self._answered(), *((),) * (array.ndim - 1)))
            if context.rank_view:
                self._check_own(name, sent[-1].type.shape, own)
                homes.append(((batch, *sent[-1].type.shape[1:]), layouts[-1]))
            else:
                whole_batches.check_sent(self.name, name, array.extents, batch)
        context.emit(Send(self.name, tuple(fields), tuple(layouts), tuple(homes)), sent)

    def _check_own(self, name: str, shape: Shape, own: Expr) -> None:
        """Raise ShapeError unless a rank gives a row for each of its own, of one shape on all."""
        fits = bool(shape) and same_extent(shape[0], own)
        if fits and not any(s.kind == "coord" for e in shape[1:] for s in e.symbols()):
            return
        if fits:
            remedy = "rows of one shape on all ranks"
        elif self._answered():
            remedy = "np.broadcast_to(value, (len(b.x),)) sends the same to all of them"
        else:
            remedy = "lay out dim 0 of all fields alike, and a rank answers for its own rows"
        raise ShapeError(
            f'what a rank sends to feed "{self.name}" has another shape', place=user_place(),
            expected=f"{name} with a row for each example that the rank has: ({own}, …)"
            if self._answered() else f"{name} with a row for each example: ({own}, …)",
            found=shape_text(shape), remedy=remedy)

    def _answered(self) -> tuple[str, ...]:
        """Return the axes that split the rows of answers: a rank answers for all rows that it has
        of any field."""
        split = {(t.layout or ((),))[0] for _, t in self.declared.fields}
        return split.pop() if len(split) == 1 else ()

    def __iter__(self) -> Iterator[Any]:
        why, remedy = in_a_for_statement("; or while feed.more(): b = feed.next()")
        raise TracedValueError(
            f'feed "{self.name}" can only stand in a for statement', place=user_place(),
            expected="for b in feed: in the program's own source", found=f"{self!r}{why}",
            remedy=remedy)

    def _context(self, method: str) -> Context:
        context = require_context(f"feed.{method}")
        if context.feeds.get(self.name) != self.declared:
            _of_another_program(self.name, method)
        return context


def _of_another_program(name: str, method: str) -> NoReturn:
    raise ProgramError(f'feed.{method}(): feed "{name}" is not declared in this program',
                       place=user_place(), expected="a feed of the program that is being built",
                       found="one of another program or build",
                       remedy="call spmd.feed inside of the program")


def feed(name: str = "feed", /, **fields: Any) -> Stream:
    """Return a stream of batches, which come while the program runs: `image.run(feed=batches)`.

    - name: where a program has several feeds, each has one. Else it is "feed".
    - fields: the arrays of a batch, as spmd.spec(shape, dtype, layout). Dim 0 of each is the batch,
      of one extent in all of them. A field without a layout is split along dim 0 over the first
      axis of the mesh. A field may be a tree of specs, of dicts, lists and tuples, as an input.

    `b = feed.next()` takes the next batch: `b.x` is the array of field x. In a loop that is
    compiled, the next batches come while ranks compute with this one. `feed.more()` says whether
    there is a next batch: `while feed.more():`, or `for b in feed:`, runs until the stream ends.
    `feed.send(values)` gives a row for each example back to whoever made the batch.

    A field called mask (bool, of shape (batch,)) is True where an example is there: the last batch
    may have fewer.

    UsageError where there are no fields or something else than a spec, ShapeError for fields
    without dims or of different batches, LayoutError for an illegal layout, ProgramError for two
    feeds of one name, or inside a shard_map.

    Example::

        @spmd.program(mesh=("r",))
        def total(batch: int = 4):
            feed = spmd.feed(x=spmd.spec((batch, 2), np.float64))
            t = spmd.asarray(np.zeros(2))
            for b in feed:
                t = t + np.sum(b.x, axis=0)
            return t

        batches = [{"x": np.full((4, 2), k)} for k in range(3)]
        print(total.eager(feed=batches))    # [12. 12.]
    """
    context = require_context("spmd.feed")
    if context.rank_view:
        raise whole_batches.declared_inside()
    specs = whole_batches.declared_fields(name, fields)
    types = {field: _field(context, name, field, spec) for field, spec in specs.items()}
    whole_batches.check_batch(name, {f: t.shape for f, t in types.items()},
                              {f: t.dtype for f, t in types.items()})
    said = {"list of fields": (", ".join(types), tuple(types))} | {
        f"field {f}": (f"{t.dtype}{shape_text(t.shape)} over {layout_text(t.layout or ())}", t)
        for f, t in types.items()}
    now = Feed(name, tuple(types.items()), user_place())
    before = context.feeds.get(name)
    if before is not None:
        declaration = context.declarations[f"feed {name}"]
        check_same(name, "feed", (before.place, declaration), (now.place, said))
        return Stream(before, fields)
    context.declarations[f"feed {name}"] = said
    context.feeds[name] = now
    return Stream(now, fields)


def _field(context: Context, feed: str, name: str, declared: Spec) -> ArrayType:
    called = f'field "{name}" of feed "{feed}"'
    extents = shape_of(declared.shape, called)
    if any(e.has_extents for e in extents):
        raise ShapeError(f"{called} has a dim whose extent only a run knows",
                         expected="an extent that is known while building: all batches of a feed "
                         "have it", found=str(declared.shape),
                         remedy="spmd.Dim(name, extent); the field mask says which rows count")
    spec = by_rules(context, declared.shape, declared.layout)
    layout: Layout = layout_of(context, spec, len(extents), called)
    if spec is None and extents:
        layout = ((context.mesh.names[0],), *layout[1:])
    return ArrayType(element_type(declared.dtype), extents, layout)


def captured_feed(stream: Stream, code: Code) -> Iterator[Any]:
    """Yield a batch once per pass of the capture of `for b in feed:`, then emit the loop."""
    context = require_context("for b in feed")
    loop = Loop(context, code, LiveOut(code.live_out or ()))
    yield from passes(loop, stream.next)
    loop.finish(Counter(context, "pass", expr.const(0), None, expr.const(1)), stream.more)


def check_feeds(module: Module) -> Module:
    """Return the module unchanged. Raise ProgramError for a feed from which nothing is taken, and
    for one that is sent different values in two places."""
    taken = {op.kind.feed for op in walk(module.body) if isinstance(op.kind, Take)}
    sent: dict[str, tuple[Op, str]] = {}
    for op in walk(module.body):
        if not isinstance(op.kind, Send):
            continue
        shapes = [shape for shape, _ in op.kind.homes] or [v.type.shape for v in op.operands]
        sent_types = ", ".join(f"{name}: {v.type.dtype}{shape_text(shape)}" for name, v, shape in
                               zip(op.kind.fields, op.operands, shapes, strict=True))
        first, expected = sent.setdefault(op.kind.feed, (op, sent_types))
        if sent_types != expected:
            raise ProgramError(
                f'feed "{op.kind.feed}" is sent different values in two places', place=op.place,
                also=(("the other one:", first.place),) if first.place else (), expected=expected,
                found=sent_types, remedy="the same names, dtypes and shapes: those who make "
                "batches read one kind of answer")
    for name in sent:
        wrong, _ = unanswerable(name, module.body)
        if wrong is not None:
            raise ProgramError(
                f'feed "{name}": send has no batch that it could answer', place=wrong.place,
                expected="a batch that feed.next() has taken before it, and one send for each",
                found="none that is not answered yet",
                remedy="b = feed.next(), then feed.send(…) with a row for each example of b")
    for f in module.feeds:
        if f.name not in taken:
            raise ProgramError(f'nothing is taken of feed "{f.name}"', place=f.place,
                               expected="feed.next(), or for b in feed:", found="neither",
                               remedy="leave out the feed, or take its batches")
    return module
