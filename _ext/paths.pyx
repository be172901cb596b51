"""Module paths, interned: (path of the caller, attribute name, class) is a number; a called module is looked up in C.

A child is found among the few modules that its caller holds. What needs a longer search (a member of a ModuleList, a
module held further out, by nobody, or called while none runs) is remembered in `hints`, under its address and its
caller's path. Addresses come back and modules are moved, so a hint is believed only if it is true now: by walking
from a running module down to this very object, or by a weak reference to it.
"""
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc

import gc
import sys

from .interpreter cimport mt_alive, mt_class_name, mt_is_a, mt_is_referent    # nn.Module's subclasses are heap types

cdef extern from *:
    """
    /* module.__dict__["_modules"] as a new reference, or NULL. Never raises. */
    static inline PyObject *mt_children(PyObject *module, PyObject *modules_str) {
        PyObject *d = PyObject_GenericGetDict(module, NULL), *m;
        if (d == NULL) { PyErr_Clear(); return NULL; }
        m = PyDict_GetItemWithError(d, modules_str);
        if (m == NULL || !PyDict_Check(m)) m = NULL;
        Py_XINCREF(m);
        Py_DECREF(d);
        if (PyErr_Occurred()) PyErr_Clear();
        return m;
    }
    /* The child of that name, or NULL. The pointer is only compared or walked on from, before anything else runs. */
    static inline PyObject *mt_child(PyObject *module, PyObject *modules_str, PyObject *name) {
        PyObject *m = mt_children(module, modules_str), *child;
        if (m == NULL) return NULL;
        child = PyDict_GetItemWithError(m, name);
        if (child == NULL && PyErr_Occurred()) PyErr_Clear();
        Py_DECREF(m);
        return child;
    }
    /* Name of `child` among the first few children, or NULL; valid while the module holds it. */
    static inline PyObject *mt_name_of(PyObject *module, PyObject *modules_str, PyObject *child, int few) {
        PyObject *m = mt_children(module, modules_str), *key, *value, *name = NULL;
        Py_ssize_t pos = 0;
        if (m == NULL) return NULL;
        while (few-- > 0 && PyDict_Next(m, &pos, &key, &value))
            if (value == child) { if (PyUnicode_CheckExact(key)) name = key; break; }
        Py_DECREF(m);
        return name;
    }
    static inline int mt_same_str(PyObject *a, PyObject *b) { return a == b || PyUnicode_Compare(a, b) == 0; }
    """
    PyObject *mt_child(PyObject *module, PyObject *modules_str, PyObject *name) noexcept
    PyObject *mt_name_of(PyObject *module, PyObject *modules_str, PyObject *child, int few) noexcept
    bint mt_same_str(PyObject *a, PyObject *b) noexcept
    Py_ssize_t PyObject_Hash(PyObject *ob) noexcept
    PyObject *PyWeakref_NewRef(PyObject *ob, PyObject *callback) noexcept
    void PyErr_Clear() noexcept
    void PyErr_SetObject(PyObject *kind, PyObject *value) noexcept
    void Py_XDECREF(PyObject *p) noexcept
    void incref "Py_INCREF" (PyObject *p) noexcept

cdef enum:
    FEW = 12                   # children looked through before a hint is asked
    MODELS = 8                 # live models of one class whose hints are kept, about
    STEPS = 8                  # containers between a running module and its member that a hint may cross

cdef object s_modules = sys.intern("_modules")
cdef object _root_observer = None
cdef object _recomputed = None
cdef object _root_path = None


# ---------------------------------------------------------------- paths: (parent id, name, class) interned

cdef struct Path:
    PyObject *name             # owned, interned
    PyObject *class_name       # owned, interned
    uint32_t parent
    uint32_t next              # next path of the same hash; 0 ends the chain

cdef uint32_t n_paths = 1      # 0 = no module
cdef uint32_t cap_paths = 32
cdef uint32_t head_mask = 31
cdef Path *paths = <Path *> calloc(cap_paths, sizeof(Path))
cdef uint32_t *heads = <uint32_t *> calloc(head_mask + 1, sizeof(uint32_t))
if paths == NULL or heads == NULL:
    raise MemoryError


cdef inline uint32_t path_hash(uint32_t parent, PyObject *name) noexcept:
    cdef uint64_t h = <uint64_t> PyObject_Hash(name) + parent * <uint64_t> 0x9E3779B97F4A7C15
    return <uint32_t> ((h * <uint64_t> 0xBF58476D1CE4E5B9) >> 32)


cdef inline uint32_t find_path(uint32_t parent, PyObject *name, PyObject *class_name) noexcept:
    """Id of the path `parent`.`name` of that class, 0 if there is none. Strings only."""
    cdef uint32_t id = heads[path_hash(parent, name) & head_mask]
    while id:
        if (paths[id].parent == parent and mt_same_str(paths[id].name, name)
                and mt_same_str(paths[id].class_name, class_name)):
            return id
        id = paths[id].next
    return 0


cdef int grow_paths() except -1:
    global paths, cap_paths, heads, head_mask
    cdef uint32_t cap = cap_paths + (cap_paths >> 3), id
    cdef uint32_t mask = head_mask
    cdef uint32_t *new_heads
    cdef uint32_t *head
    cdef Path *bigger = <Path *> realloc(paths, cap * sizeof(Path))
    if bigger == NULL:
        raise MemoryError
    paths = bigger
    cap_paths = cap
    if cap <= 2 * head_mask:
        return 0
    mask = 2 * head_mask + 1
    new_heads = <uint32_t *> calloc(mask + 1, sizeof(uint32_t))
    if new_heads == NULL:
        return 0                               # longer chains, still right
    for id in range(1, n_paths):
        head = &new_heads[path_hash(paths[id].parent, paths[id].name) & mask]
        paths[id].next = head[0]
        head[0] = id
    free(heads)
    heads = new_heads
    head_mask = mask
    return 0


cpdef uint32_t intern_path(uint32_t parent, str name, str class_name) except NO_PATH:
    """Id of the path `parent`.`name` of a module of that class."""
    cdef uint32_t id = find_path(parent, <PyObject *> name, <PyObject *> class_name)
    return id if id else new_path(parent, name, class_name)


cpdef uint32_t new_path(uint32_t parent, str name, str class_name) except NO_PATH:
    """Id of a further path `parent`.`name`: two models of one class have paths of the same name."""
    global n_paths
    cdef uint32_t *head
    cdef Path *p
    if parent >= n_paths:
        raise IndexError(f"[intern_path] expected a path id below {n_paths}, got {parent}")
    name = sys.intern(str(name))
    class_name = sys.intern(str(class_name))
    if n_paths == cap_paths:
        grow_paths()
    p = &paths[n_paths]
    p.name = <PyObject *> name
    p.class_name = <PyObject *> class_name
    p.parent = parent
    incref(p.name)
    incref(p.class_name)
    head = &heads[path_hash(parent, p.name) & head_mask]
    p.next = head[0]
    head[0] = n_paths
    n_paths += 1
    return n_paths - 1


cdef Path *path_at(id) except NULL:
    if not 0 < id < n_paths:
        raise IndexError(f"[path] expected an id in 1..{n_paths - 1}, got {id}")
    return &paths[<uint32_t> id]


def module_path(id):
    """Dotted path such as ``GPT2.h.0.attn``; "" for id 0."""
    names = []
    while id:
        p = path_at(id)
        names.append(<object> p.name)
        id = p.parent
    return ".".join(reversed(names))


def path_parent(id):
    return path_at(id).parent


def path_root(id):
    """Of the model that it leads into."""
    cdef uint32_t parent
    while True:
        parent = path_at(id).parent
        if parent == 0:
            return id
        id = parent


def path_name(id):
    return <object> path_at(id).name


def path_class(id):
    return <object> path_at(id).class_name


def path_count():
    """Ids are 1 .. path_count() - 1."""
    return n_paths


# ---------------------------------------------------------------- what is held, by identity
#
# Not by ``id``: each call of it is an audit event, and a model has thousands of modules.

cdef list walk_under(object root, bint to_parameter):
    """The module itself and all under it, each once, parents first; as far as one that has a parameter."""
    cdef set seen = set()
    cdef list todo = [root], found = []
    cdef object module, children, own, parameter
    while todo:
        module = todo.pop()
        if module is None or <uintptr_t> <PyObject *> module in seen:
            continue
        seen.add(<uintptr_t> <PyObject *> module)
        found.append(module)
        if to_parameter:
            own = module._parameters
            for parameter in list(own.values()) if own else ():
                if parameter is not None:
                    return [parameter]
        children = module._modules
        if children:
            todo.extend(reversed(list(children.values())))
    return [] if to_parameter else found


def modules_under(root):
    """The module itself and all under it, each once, parents first."""
    return walk_under(root, False)


def first_parameter(root):
    """The first of what `modules_under` gives, or None."""
    cdef list found = walk_under(root, True)
    return found[0] if found else None


cdef object _as_now(object table):
    # TorchScript's modules have tables of their own, whose items are a list.
    return table.copy() if isinstance(table, dict) else table


def named_modules(root):
    """(name, module) of the module itself, its name empty, and all under it, each once, parents first."""
    cdef set seen = set()
    cdef list todo = [("", root)], found = [], below
    cdef object name, module, children
    while todo:
        name, module = todo.pop()
        if module is None or <uintptr_t> <PyObject *> module in seen:
            continue
        seen.add(<uintptr_t> <PyObject *> module)
        found.append((name, module))
        children = module._modules
        if children:
            below = []
            for child, held in _as_now(children).items():
                below.append((f"{name}.{child}" if name else child, held))
            todo.extend(reversed(below))
    return found


def named_tensors(root):
    """(name, tensor) of all parameters under it, then of all buffers, each once."""
    cdef set seen = set()
    cdef list found = [], every = named_modules(root)
    cdef object kind, prefix, module, name, tensor
    for kind in ("_parameters", "_buffers"):
        for prefix, module in every:
            for name, tensor in _as_now(getattr(module, kind)).items():
                if tensor is not None and <uintptr_t> <PyObject *> tensor not in seen:
                    seen.add(<uintptr_t> <PyObject *> tensor)
                    found.append((f"{prefix}.{name}" if prefix else name, tensor))
    return found


def held_by(list holders):
    """(parameters, buffers) of those modules, each once, in their order."""
    cdef dict parameters = {}, buffers = {}
    cdef object holder, tensor
    for holder in holders:
        for own, every in ((holder._parameters, parameters), (holder._buffers, buffers)):
            if own:
                for tensor in list(own.values()):
                    if tensor is not None:
                        every[<uintptr_t> <PyObject *> tensor] = tensor
    return list(parameters.values()), list(buffers.values())


# ---------------------------------------------------------------- hints: (module, caller's path) that took a search

cdef struct Hint:                              # open addressing; empty when path == 0
    PyObject *wr                               # owned weak reference to the module; NULL: a running module leads there
    uint32_t hash                              # of (address, caller)
    uint32_t path

cdef enum:
    CALLER_NODE = 1 << 31                      # caller is an autograd node made in the module of that path

cdef uint32_t n_hints = 0
cdef uint32_t hint_mask = 15
cdef Hint *hints = <Hint *> calloc(hint_mask + 1, sizeof(Hint))
if hints == NULL:
    raise MemoryError


cdef inline uint32_t hint_hash(PyObject *child, uint32_t caller) noexcept:
    cdef uint64_t h = (<uintptr_t> child >> 4) * <uint64_t> 0x9E3779B97F4A7C15 + caller
    h ^= h >> 29
    return <uint32_t> ((h * <uint64_t> 0xBF58476D1CE4E5B9) >> 32)


cdef bint leads_to(PyObject *child, uint32_t path, PyObject **stack, const uint32_t *ids, uint32_t depth) noexcept:
    """Does `path`, walked down from the innermost running module on it, end at `child`? By the classes, too: what is
    at that address now may be what another program's module of that name was replaced by."""
    cdef uint32_t taken[STEPS]
    cdef PyObject *module = NULL
    cdef uint32_t steps = 0, at = path, i
    while at and module == NULL and steps < STEPS:
        taken[steps] = at
        steps += 1
        at = paths[at].parent
        i = depth
        while i > 0 and module == NULL:
            i -= 1
            if ids[i] == at:
                module = stack[i]
    while steps > 0 and module != NULL:
        steps -= 1
        module = mt_child(module, <PyObject *> s_modules, paths[taken[steps]].name)
        if module != NULL and not mt_same_str(mt_class_name(module), paths[taken[steps]].class_name):
            return False
    return module == child


cdef uint32_t ask_hint(PyObject *child, uint32_t caller, PyObject **stack, const uint32_t *ids,
                       uint32_t depth) noexcept:
    """Remembered path, if it is true now; else 0."""
    cdef uint32_t hash = hint_hash(child, caller)
    cdef uint32_t i = hash & hint_mask
    cdef Hint *h
    while hints[i].path:
        h = &hints[i]
        if h.hash == hash and (mt_is_referent(h.wr, child) if h.wr != NULL else
                               leads_to(child, h.path, stack, ids, depth)):
            return h.path
        i = (i + 1) & hint_mask
    return 0


cdef int remember(PyObject *child, uint32_t caller, uint32_t path, bint by_reference) except -1:
    global n_hints
    cdef uint32_t hash = hint_hash(child, caller), i
    cdef PyObject *wr = NULL
    if by_reference:
        wr = PyWeakref_NewRef(child, NULL)
        if wr == NULL:
            PyErr_Clear()                      # a class without weak references: searched for at every call
            return 0
    if (n_hints + 1) * 8 > (hint_mask + 1) * 7 and not rebuild_hints():
        Py_XDECREF(wr)
        return 0
    i = hash & hint_mask
    while hints[i].path and hints[i].hash != hash:
        i = (i + 1) & hint_mask
    if hints[i].path == 0:
        n_hints += 1
    Py_XDECREF(hints[i].wr)                    # an earlier module at this address
    hints[i].wr = wr
    hints[i].hash = hash
    hints[i].path = path
    return 0


cdef bint rebuild_hints() noexcept:
    """Make room: forget the dead, and double the table when that is not enough."""
    global hints, hint_mask, n_hints
    cdef uint32_t i, j, size = hint_mask + 1, new_size = size, led = 0, referenced = 0
    cdef Hint *old = hints
    cdef Hint *new
    for i in range(size):
        if old[i].wr != NULL:
            referenced += mt_alive(old[i].wr)
        elif old[i].path:
            led += 1
    if led > MODELS * n_paths:                 # most are of models that are gone: the others will be found again
        led = 0
    if (led + referenced) * 2 > size:
        new_size = 2 * size
    new = <Hint *> calloc(new_size, sizeof(Hint))
    if new == NULL:
        return False
    hints = new
    hint_mask = new_size - 1
    n_hints = 0
    for i in range(size):
        if mt_alive(old[i].wr) if old[i].wr != NULL else led and old[i].path:
            j = old[i].hash & hint_mask
            while new[j].path:
                j = (j + 1) & hint_mask
            new[j] = old[i]
            n_hints += 1
        else:
            Py_XDECREF(old[i].wr)
    free(old)
    return True


# ---------------------------------------------------------------- searches, at a module's first call

cpdef str class_name(object module):
    """Name of the module's class; of a lazy module, that of the class which it has from its first call on."""
    cdef object kind = type(module), later = getattr(kind, "cls_to_become", None)
    return later.__name__ if isinstance(later, type) else kind.__name__


cdef uint32_t locate(object child, PyObject **stack, const uint32_t *ids, uint32_t depth) except NO_PATH:
    """Path of a module called by stack[depth - 1]: a search by identity, innermost running module first."""
    cdef str cls = class_name(child)
    cdef uint32_t caller = ids[depth - 1], i = depth, path, position
    cdef object ancestor, holder, module
    for position, (name, module) in enumerate((<object> stack[depth - 1])._modules.items()):
        if module is child:
            path = intern_path(caller, name, cls)
            if position >= FEW:
                remember(<PyObject *> child, caller, path, False)
            return path
    # In a list of its caller's: a model of many layers would be walked through for each of them.
    for holder_name, holder in (<object> stack[depth - 1])._modules.items():
        if holder is None:
            continue
        for name, module in holder._modules.items():
            if module is child:
                path = intern_path(intern_path(caller, holder_name, class_name(holder)), name, cls)
                remember(<PyObject *> child, caller, path, False)
                return path
    while i > 0:                               # deeper, or held by a module further out
        i -= 1
        ancestor = <object> stack[i]
        for name, module in named_modules(ancestor):
            if module is child and name:
                path = intern_steps(ancestor, ids[i], name, cls)
                remember(<PyObject *> child, caller, path, False)
                return path
    # Held by no running module: made on the fly or kept in a plain list.
    path = intern_path(caller, f"({cls})", cls)
    remember(<PyObject *> child, caller, path, True)
    return path


cdef uint32_t intern_steps(object root, uint32_t base, str qualified, str cls) except NO_PATH:
    """One path per component, so that containers (ModuleList) appear in the tree."""
    cdef object owner = root
    *containers, last = qualified.split(".")
    for name in containers:
        owner = owner._modules[name]
        base = intern_path(base, name, class_name(owner))
    return intern_path(base, last, cls)


cdef uint32_t meet_outermost(object child, uint32_t node) except NO_PATH:
    cdef str cls = class_name(child)
    cdef uint32_t path = 0
    if node and _recomputed is not None:
        path = _recomputed(child, node)
    if not path:
        path = intern_path(0, cls, cls) if _root_path is None else _root_path(child)
    remember(<PyObject *> child, node | CALLER_NODE if node else 0, path, True)
    if not node and _root_observer is not None:
        _root_observer(child, path)
    return path


cdef uint32_t path_of_child(PyObject *child, PyObject **stack, const uint32_t *ids, uint32_t depth) noexcept:
    cdef PyObject *name = mt_name_of(stack[depth - 1], <PyObject *> s_modules, child, FEW)
    cdef uint32_t path = 0
    if name != NULL:
        path = find_path(ids[depth - 1], name, mt_class_name(child))
    else:
        path = ask_hint(child, ids[depth - 1], stack, ids, depth)
    if path:
        return path
    try:
        return locate(<object> child, stack, ids, depth)
    except BaseException as error:
        raised, kind = error, type(error)
    PyErr_SetObject(<PyObject *> kind, <PyObject *> raised)
    return NO_PATH


cdef uint32_t path_of_outermost(PyObject *child, uint32_t node) noexcept:
    cdef uint32_t path = ask_hint(child, node | CALLER_NODE if node else 0, NULL, NULL, 0)
    if path:
        return path
    try:
        return meet_outermost(<object> child, node)
    except BaseException as error:
        raised, kind = error, type(error)
    PyErr_SetObject(<PyObject *> kind, <PyObject *> raised)
    return NO_PATH


# ---------------------------------------------------------------- from Python

def configure(root_observer, recomputed, root_path=None):
    """``root_observer(module, path id)`` hears of each outermost module when it is first called.

    ``recomputed(module, path id)`` gives the path of a module that is called again in backward, by an autograd node
    made in the module of that path; 0 when it is not known. ``root_path(module)`` gives the path of an outermost one;
    without it those of one class share one.
    """
    global _root_observer, _recomputed, _root_path
    _root_path = root_path
    _root_observer = root_observer
    _recomputed = recomputed


def forget():
    """Meet every module anew: whoever listens next hears of those that are there already."""
    global n_hints
    cdef uint32_t i
    for i in range(hint_mask + 1):
        hints[i].path = 0
        Py_XDECREF(hints[i].wr)
        hints[i].wr = NULL
    n_hints = 0


def living(kind):
    """The objects of that class that are alive, of those that Python's garbage collector follows and has not frozen.

    No Python code runs meanwhile, so that nobody can tell that all of them were referred to for a moment.
    """
    cdef list found = []
    if not isinstance(kind, type):
        raise TypeError(f"[living] expected a class, got {type(kind).__name__}")
    for thing in gc.get_objects():
        if mt_is_a(<PyObject *> thing, <PyObject *> kind):
            found.append(thing)
    return found


def table_bytes():
    """Bytes held by the tables of this module, weak references included; names belong to the program."""
    cdef size_t total = cap_paths * sizeof(Path) + (head_mask + 1) * 4 + (hint_mask + 1) * sizeof(Hint)
    cdef uint32_t i
    for i in range(hint_mask + 1):
        if hints[i].wr != NULL:
            total += sys.getsizeof(<object> hints[i].wr)
    return total
