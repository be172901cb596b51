"""What stands for a function of torch's that changes a setting, where its C function cannot be exchanged."""
import sys

from cpython.module cimport PyModule_Check, PyModule_GetDict


def holders(dict standing, tuple besides):
    """[(module, name, stand-in)] of every loaded module that has a key of `standing` by name, but for those `besides`.

    A program has 200,000 such names, and a profile starts with this: only values of the keys' types are looked up,
    whose hashes are Python's own.
    """
    cdef set kinds = {type(original) for original in standing}
    cdef list found = []
    for called, module in list(sys.modules.items()):
        if not PyModule_Check(module) or called in besides:
            continue
        names = <object>PyModule_GetDict(module)
        for name, value in (<dict>names).copy().items():      # finalizers may run, and change it
            if type(value) in kinds and (instead := standing.get(value)) is not None:
                found.append((module, name, instead))
    return found


cdef class StandIn:
    """What stands for a function of torch's, and says so when asked who it is."""
    cdef object func
    cdef dict __dict__
    cdef object __weakref__                    # torch.jit.script keeps functions by weak reference

    @property
    def __class__(self):
        return type(self.func)                 # isinstance(torch.zeros, types.BuiltinFunctionType): Dynamo asks

    def __getattr__(self, name):
        return getattr(self.func, name)        # __self__, __text_signature__ and what else a builtin has

    def __hash__(self):
        return hash(self.func)

    def __eq__(self, other):
        # Dynamo's tables may have been made with torch's own function or with the hook: both find the other.
        if issubclass(type(other), StandIn):   # isinstance() would believe `__class__`
            return (<StandIn>other).func is self.func
        return other is self.func

    def __get__(self, instance, owner):
        return self                            # a builtin does not bind either

    def __repr__(self):
        return repr(self.func)

    def __reduce__(self):
        return self.__name__                   # pickled by name, like the function it stands for


cdef class SettingHook(StandIn):
    """Stand-in for a function that changes a setting: before(args, kwargs) is called first, after() last, under `lock`.

    It has no frame, so that a warning of the function names the line that it would name without us.
    """
    cdef object lock, before, after

    def __init__(self, func, lock, before, after):
        self.func = func
        self.lock = lock
        self.before = before
        self.after = after

    def __call__(self, *args, **kwargs):
        with self.lock:
            self.before(args, kwargs)
            try:
                return self.func(*args, **kwargs)
            finally:
                self.after()
