"""L9, L12: the C side of module paths and source lines, against slow, obvious Python."""

import sys
import threading

import pytest
import torch

from mindtorch._ext import context, location
from mindtorch.engine import semantics
from mindtorch.engine.semantics import generation


@pytest.fixture(autouse=True)
def tracked():
    semantics.install()
    yield
    semantics.uninstall()


def oracle():
    """Innermost user frame, found the slow way."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(semantics.skipped_prefixes()):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def test_L9_location_is_the_calling_line():
    assert location.location(location.get_location()) == oracle()
    ids = {location.get_location() for _ in range(100)}
    assert len(ids) == 1  # interned: a line in a loop is one entry
    assert location.location(0) is None
    with pytest.raises(IndexError):
        location.location(location.location_count())


def test_L9_location_skips_library_frames():
    seen = []

    class Probe(torch.nn.Module):
        forward = staticmethod(lambda x: x)

    layer = torch.nn.Sequential(Probe())
    layer[0].register_forward_hook(lambda *_: seen.append((location.location(location.get_location()), oracle())))
    layer(torch.ones(1))
    assert seen[0][0] == seen[0][1] and seen[0][0][0] == __file__

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            place.append(location.location(location.get_location()))
            return func(*args, **(kwargs or {}))

    place: list = []
    with Recorder():
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    # The mode's own frame is this file's: what counts is that torch's frames between were passed over.
    assert {p[0] for p in place} == {__file__}


def test_L9_location_within_every_kind_of_frame():
    here = location.get_location

    def generator():
        yield found.append((here(), oracle()))
        yield from (found.append((here(), oracle())) for _ in range(2))

    async def coroutine():
        found.append((here(), oracle()))

    class Falls:
        def __del__(self):
            found.append((here(), oracle()))

        @property
        def asked(self):
            return found.append((here(), oracle()))

    def raises():
        try:
            raise KeyError
        except KeyError:
            found.append((here(), oracle()))
        finally:
            found.append((here(), oracle()))

    def alone():
        found.append((here(), oracle()))

    found: list = []
    list(generator())
    with pytest.raises(StopIteration):
        coroutine().send(None)
    Falls().asked
    raises()
    sorted([2, 1], key=lambda n: found.append((here(), oracle())) or n)  # called by C
    exec("class Body:\n    found.append((here(), oracle()))", {"found": found, "here": here, "oracle": oracle})
    thread = threading.Thread(target=alone)
    thread.start()
    thread.join()
    assert len(found) == 12 and len({slow for _, slow in found}) == 10
    assert all(location.location(ours) == slow for ours, slow in found)


def test_L9_many_lines_and_code_objects_are_told_apart():
    functions = []
    for i in range(3000):
        names: dict = {}
        exec(compile(f"def f{i}(get):\n" + "\n" * (i % 7) + "    return get()", f"<made {i}>", "exec"), names)
        functions.append((i, names[f"f{i}"]))
    ids = [(i, f(location.get_location)) for i, f in functions]
    assert len({id for _, id in ids}) == 3000
    for i, id in ids:
        assert location.location(id) == (f"<made {i}>", 2 + i % 7, f"f{i}")
    assert [f(location.get_location) for _, f in functions] == [id for _, id in ids]


def test_L12_paths_are_interned_once():
    before = context.path_count()
    a = context.intern_path(0, "Made", "Made")
    b = context.intern_path(a, "child", "Child")
    assert context.intern_path(a, "child", "Child") == b and context.path_count() == before + 2
    other = context.intern_path(a, "child", "Other")
    assert other != b and context.path_class(other) == "Other" and context.module_path(other) == "Made.child"
    assert (context.module_path(b), context.path_class(b), context.path_parent(b)) == ("Made.child", "Child", a)
    assert context.path_name(b) == "child" and context.module_path(0) == ""
    for call in (context.module_path, context.path_name, context.path_class, context.path_parent):
        with pytest.raises(IndexError):
            call(context.path_count())
    with pytest.raises(IndexError):
        context.intern_path(context.path_count(), "x", "x")


def test_L12_tables_are_compact_and_stay_bounded():
    class Leaf(torch.nn.Module):
        def forward(self, x):
            return x

    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.leaves = torch.nn.ModuleList(Leaf() for _ in range(50))

        def forward(self, x):
            for leaf in self.leaves:
                x = leaf(x)
            return x

    def bytes_after(models):
        for _ in range(models):
            Root()(1)
        return context.table_bytes()

    before = context.table_bytes()  # of what other tests called
    bytes_after(100)
    assert bytes_after(200) <= bytes_after(0) * 2 and context.table_bytes() - before < 2_000_000


class Where(torch.nn.Module):
    """Gives its own path."""

    def forward(self, *_):
        return context.module_path(context.get_module())


class Holder(torch.nn.Module):
    """Calls what it is told to call."""

    def __init__(self, wide=40):
        super().__init__()
        self.first = Where()
        self.many = torch.nn.ModuleList(Where() for _ in range(wide))
        for i in range(wide):
            self.add_module(f"w{i}", Where())

    def forward(self, *children):
        return [child() for child in children]


def test_L12_every_child_has_its_own_path_in_wide_modules_and_lists():
    holders = [Holder(), Holder()]
    expected = ["Holder.first", *(f"Holder.many.{i}" for i in range(40)), *(f"Holder.w{i}" for i in range(40))]
    count = 0
    for _ in range(3):
        for holder in holders:  # two live models share their paths
            children = [holder.first, *holder.many, *(getattr(holder, f"w{i}") for i in range(40))]
            assert holder(*children) == expected
        count = count or context.path_count()
    assert context.path_count() == count


def test_L12_paths_follow_modules_that_are_replaced_moved_or_shared():
    holder, other = Holder(2), Holder(2)
    loose = Where()
    for _ in range(2):
        assert holder(holder.many[0], holder.w1, loose) == ["Holder.many.0", "Holder.w1", "Holder.(Where)"]
    held = holder.many[0], holder.w1
    holder.many[0], holder.w1 = held[1], held[0]
    for _ in range(2):
        assert holder(*held) == ["Holder.w1", "Holder.many.0"]
    holder.loose = loose
    assert holder(loose) == ["Holder.loose"]
    # What the other model holds is not this one's; called by it, it is.
    for _ in range(2):
        assert holder(other.w0) == ["Holder.(Where)"] and other(other.w0) == ["Holder.w0"]
    del holder.w0
    for _ in range(50):  # new modules, often at an old one's address
        assert holder(Where()) == ["Holder.(Where)"]
        holder.fresh = Where()
        assert holder(holder.fresh) == ["Holder.fresh"]


def test_L12_a_member_of_another_class_at_an_old_ones_address_has_its_own_class():
    """A notebook defines its classes again: the new model's layers had the class of the old one's at that address."""

    class Kind(torch.nn.Module):
        def forward(self):
            return context.path_class(context.get_module())

    class Other(Kind):
        pass

    reused = 0
    for _ in range(20):
        holder = Holder(2)
        before = 0
        for kind in (Kind, Other, Kind, Other):
            holder.many[0] = torch.nn.Identity()  # what was there is gone
            holder.many[0] = now = kind()
            assert holder(now) == [kind.__name__]
            reused += id(now) == before
            before = id(now)
            del now
    if not reused:
        pytest.skip("no address was used again, as under sanitizers: nothing was tested")


def test_L12_tables_forget_loose_modules_that_died():
    def held_after(n):
        for _ in range(n):
            Where()()  # outermost, and never again
            Holder(1)(Where())
        return context.table_bytes()

    held_after(200)
    assert held_after(2000) <= held_after(0) + 16384
    kept = [Where() for _ in range(500)]
    holder = Holder(1)
    for _ in range(3):
        assert set(holder(*kept)) == {"Holder.(Where)"}


def test_L12_a_module_that_raises_while_it_is_looked_up():
    class Bad(torch.nn.Module):
        looked_up = False

        def __getattribute__(self, name):
            if name == "_modules" and super().__getattribute__("looked_up"):
                raise ZeroDivisionError("mine")
            return super().__getattribute__(name)

        def forward(self, child):
            type(self).looked_up = True
            return child(1)

    with pytest.raises(ZeroDivisionError, match="mine"):
        Bad()(torch.nn.Identity())
    assert context.get_module() == 0


def test_L12_super_call_keyword_arguments_and_a_missing_self():
    class Wraps(torch.nn.Module):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

        def forward(self, a, *, b=0):
            return a, b, context.module_path(context.get_module())

    for _ in range(100):  # past the interpreter's specialization of the call
        assert Wraps()(1, b=2) == (1, 2, "Wraps")
        assert torch.nn.Module.__call__(Wraps(), a=1, b=3) == (1, 3, "Wraps")
    with pytest.raises(TypeError):
        torch.nn.Module.__call__()
    with pytest.raises(TypeError, match="expected a Python function"):
        context.track_calls(len, len)


def test_L12_a_thread_that_ends_gives_its_log_back():
    def work():
        torch.nn.Linear(1, 1)(torch.ones(1)).sum()

    for _ in range(40):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    few = context.table_bytes()
    for _ in range(40):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    # A thread's end is noticed a moment after join(); without reuse there would be 40 more logs of 3 kB.
    assert context.table_bytes() <= few + 10_000


def test_L12_who_follows_generation_is_told_of_a_call_as_it_was_made():
    class Takes(torch.nn.Module):
        def forward(self, *given, **named):
            return len(given) + len(named)

    net, told = Takes(), []
    context.follow_generation(lambda *call: told.append(call) or context.CANDIDATE, lambda *ended: told.append(ended))
    try:
        with torch.no_grad():
            assert (net(), net("a"), net("a", "b", c="d", e="f")) == (0, 1, 4)
    finally:
        generation.install()
    assert told == [
        (net, (), {}),
        (net, 0),
        (net, ("a",), {}),
        (net, 1),
        (net, ("a", "b"), {"c": "d", "e": "f"}),
        (net, 4),
    ]


def test_L12_only_paths_that_exist_can_be_asked_about():
    last = context.intern_path(0, "Last", "Class")
    while last + 1 < context.path_count():
        last += 1
    assert context.module_path(0) == "" and context.path_name(last) and context.path_class(last) is not None
    for ask in (context.path_parent, context.path_root, context.path_name, context.path_class):
        for bad in (0, -1, last + 1):
            with pytest.raises(IndexError, match=f"expected an id in 1..{last}, got {bad}"):
                ask(bad)


def test_L9_lines_and_paths_are_found_again_in_tables_that_have_grown():
    """Where they collide, too: the tables are searched as they were filled, and filled anew as they grew."""
    source = "".join(
        f"def f{k}(here):\n    first = here()\n    return first, here(), here(\n    )\n" for k in range(700)
    )
    made: dict = {}
    exec(compile(source, "grown.py", "exec"), made)
    functions = [made[f"f{k}"] for k in range(700)]
    found = [function(location.get_location) for function in functions]
    count = location.location_count()
    assert [function(location.get_location) for function in functions] == found
    assert location.location_count() == count
    for k, ids in enumerate(found):
        lines = [4 * k + 2, 4 * k + 3, 4 * k + 3]
        assert [location.location(each) for each in ids] == [("grown.py", line, f"f{k}") for line in lines]

    parents = [context.intern_path(0, f"Grown{k}", "Grown") for k in range(50)]
    paths = [context.intern_path(parent, f"layer{k}", "Layer") for parent in parents for k in range(40)]
    count = context.path_count()
    assert [context.intern_path(parent, f"layer{k}", "Layer") for parent in parents for k in range(40)] == paths
    assert context.path_count() == count and len(set(paths)) == 2000
    for k, path in enumerate(paths):
        assert context.module_path(path) == f"Grown{k // 40}.layer{k % 40}"
        assert context.path_parent(path) == context.path_root(path) == parents[k // 40]
        assert (context.path_name(path), context.path_class(path)) == (f"layer{k % 40}", "Layer")
