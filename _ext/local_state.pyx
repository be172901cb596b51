"""What torch keeps for each thread of how calls are dispatched: keys, grad mode, modes of torch functions.

Each recorded call asks for these, and asking torch in Python takes a tenth of recording. The libraries of torch export
them: two functions, and the variable of a thread in which the dispatcher's keys are, which `start` proves to change as
the program says. Where one is not there, or does not, torch is asked in Python.
"""
from libc.stdint cimport uint8_t

cdef extern from "Python.h":
    object PyObject_CallNoArgs(object callable)

cdef extern from *:
    """
    /* The address is another in each thread, and dlsym says that of the calling one. */
    static void *mt_library;
    static __thread mt_key_sets *mt_found;
    static inline mt_key_sets *mt_keys(void) {
        if (!mt_library) return NULL;
        if (!mt_found) mt_found = dlsym(mt_library, "_ZN3c104impl26raw_local_dispatch_key_setE");
        return mt_found;
    }
    static int mt_open(const char *path) {
    #ifdef __linux__       /* elsewhere, the name is that of something which says where the variable is */
        mt_library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    #endif
        return mt_library && mt_keys();
    }
    static void mt_close(void) { mt_library = NULL; }
    """
    mt_key_sets *mt_keys() noexcept
    bint mt_open(const char *path) noexcept
    void mt_close() noexcept

ctypedef uint8_t (*Says)() noexcept            # a C++ bool is one byte
ctypedef long (*Counts)() noexcept
ctypedef void (*Sets)(int state) noexcept

cdef object grad_enabled, function_stack, functions_enabled, dispatch_stack, any_autocast
cdef Says grad_ = NULL
cdef Counts functions_ = NULL
cdef Says hidden_ = NULL               # how far functions are kept from classes and modes; 0: not at all
cdef Sets hide_ = NULL
cdef int from_classes = 0


def ask(torch):
    """Ask torch in Python. Called once, before start()."""
    global grad_enabled, function_stack, functions_enabled, dispatch_stack, any_autocast
    grad_enabled = torch.is_grad_enabled
    function_stack, dispatch_stack = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
    any_autocast, functions_enabled = torch._C._is_any_autocast_enabled, torch._C._is_torch_function_enabled


def start(str library, find, list keyed, no_grad, with_function_mode, without_classes):
    """Read instead what is exported, and what proves to be what torch says.

    Returns whether it is, of (keys, grad mode, function modes, who is asked about functions).

    `library`: path of torch's C++ core. `find(name)`: address of a C++ function, 0 where it is not exported. `keyed`:
    contexts in which keys are others than by default; `no_grad`, `with_function_mode`: contexts, too;
    `without_classes`: one in which no class is asked about functions.
    """
    global grad_, functions_, hidden_, hide_, from_classes
    cdef bint read = bool(library) and mt_open(library.encode())
    read = read and no_keys()
    for context in keyed if read else ():
        with context:
            read = read and not no_keys()
        read = read and no_keys()
    if not read:
        mt_close()
    grad_ = <Says><size_t>find("_ZN3c108GradMode10is_enabledEv")
    functions_ = <Counts><size_t>find("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv")
    if grad_ != NULL:
        before = grad_mode()
        with no_grad:
            if grad_():
                grad_ = NULL
        if before != <bint>grad_enabled():
            grad_ = NULL
    if functions_ != NULL:
        before = functions_() == <long>function_stack()
        with with_function_mode:
            if not before or functions_() != <long>function_stack():
                functions_ = NULL
    hidden_ = <Says><size_t>find("_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv")
    hide_ = <Sets><size_t>find(
        "_ZN2at4impl22PythonTorchFunctionTLS18set_disabled_stateENS0_26TorchFunctionDisabledStateE")
    if hidden_ != NULL:
        with without_classes:
            from_classes = hidden_()
    if hide_ == NULL or hidden_ == NULL or not hides():
        hidden_, hide_ = NULL, NULL
    return read, grad_ != NULL, functions_ != NULL, hide_ != NULL


cdef bint hides() except -1:
    """Does torch notice what is set, and what is set back?"""
    if hidden_() or not from_classes or not functions_enabled():
        return False
    hide_(from_classes)
    seen = functions_enabled()
    hide_(0)
    return not seen and functions_enabled()


def stop():
    """Ask torch in Python from now on, and make no views without it."""
    global grad_, functions_, hidden_, hide_
    grad_, functions_, hidden_, hide_ = NULL, NULL, NULL, NULL
    mt_close()


cdef mt_key_sets *keys() noexcept:
    return mt_keys()


cdef bint no_keys() noexcept:
    cdef mt_key_sets *found = mt_keys()
    return found != NULL and not (found.included | found.excluded)


cdef bint grad_mode() except -1:
    return grad_() != 0 if grad_ != NULL else PyObject_CallNoArgs(grad_enabled)


cdef bint function_modes() except -1:
    return functions_() != 0 if functions_ != NULL else PyObject_CallNoArgs(function_stack)


cdef int hide_functions() except -2:
    if hide_ == NULL:
        return -1 if PyObject_CallNoArgs(functions_enabled) else 0
    if hidden_():
        return 0
    hide_(from_classes)
    return 1


cdef void show_functions() noexcept:
    hide_(0)


cdef bint undisturbed() except -1:
    return no_keys() or (not PyObject_CallNoArgs(dispatch_stack) and not PyObject_CallNoArgs(any_autocast))
