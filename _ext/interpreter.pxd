"""What the engine knows of CPython beyond its documented interface: here, and nowhere else.

Each fact names the releases it holds for (3.10 to 3.14 where nothing is said); layouts come from the headers that a
build finds, and `interpreter.pyx` proves them at import.
"""
from cpython.object cimport PyObject

cdef extern from *:
    """
    #include "structmember.h"
    #include "frameobject.h"

    /* ---- Builtin functions and methods. Where the definition of one is; NULL: it is neither. */
    static inline PyMethodDef **mt_definition(PyObject *f) {
        if (PyCFunction_CheckExact(f)) return &((PyCFunctionObject *)f)->m_ml;
        return Py_IS_TYPE(f, &PyMethodDescr_Type) ? &((PyMethodDescrObject *)f)->d_method : NULL;
    }
    /* How a builtin function is called; NULL: by its definition. A method has nothing of the kind. */
    static inline vectorcallfunc *mt_entry(PyObject *f) { return &((PyCFunctionObject *)f)->vectorcall; }
    /* Another object that does what `f` does, called by its definition. */
    static inline PyObject *mt_copy(PyObject *f) {
        PyCFunctionObject *c = (PyCFunctionObject *)f;
        if (!PyCFunction_CheckExact(f)) return PyDescr_NewMethod(PyDescr_TYPE(f), *mt_definition(f));
        return PyCFunction_NewEx(c->m_ml, c->m_self, c->m_module);
    }
    /* Calls of a Python function go to `call`. Until 3.11 that is done by hand. */
    static inline void mt_set_vectorcall(PyObject *f, void *call) {
    #if PY_VERSION_HEX >= 0x030C0000
        PyFunction_SetVectorcall((PyFunctionObject *)f, (vectorcallfunc)call);
    #else
        ((PyFunctionObject *)f)->vectorcall = (vectorcallfunc)call;
    #endif
    }

    /* ---- Attributes of builtin types, members of classes. Where the definition is; NULL: it is no such attribute. */
    static inline PyGetSetDef **mt_attribute(PyObject *descr) {
        return Py_IS_TYPE(descr, &PyGetSetDescr_Type) ? &((PyGetSetDescrObject *)descr)->d_getset : NULL;
    }
    /* What the attribute says of an object of its class. */
    static inline PyObject *mt_ask(PyObject *descr, PyObject *obj) {
        PyGetSetDef *d = *mt_attribute(descr);
        return d->get(obj, d->closure);
    }
    /* Offset of a member of `__slots__` in its objects; -1: it is none. */
    static inline Py_ssize_t mt_slot_offset(PyObject *descr) {
        if (!PyObject_TypeCheck(descr, &PyMemberDescr_Type)) return -1;
        return ((PyMemberDescrObject *)descr)->d_member->offset;
    }
    #define MT_SLOT(obj, off) (*(PyObject **)((char *)(obj) + (off)))
    #define MT_SET_SLOT(obj, off, val) (MT_SLOT(obj, off) = (val))

    /* ---- Classes. Borrowed; of a class that a program made. 3.11 has a function for it, which makes an object. */
    static inline int mt_is_a(PyObject *o, PyObject *kind) { return PyObject_TypeCheck(o, (PyTypeObject *)kind); }
    static inline PyObject *mt_class_name(PyObject *o) { return ((PyHeapTypeObject *)Py_TYPE(o))->ht_name; }
    static inline newfunc *mt_constructor(PyObject *type) { return &((PyTypeObject *)type)->tp_new; }
    /* What `x[i]` calls, of a class that has a table of its own: one that a program made. */
    typedef binaryfunc mt_binary;
    static inline mt_binary *mt_subscript(PyObject *type) {
        return &((PyTypeObject *)type)->tp_as_mapping->mp_subscript;
    }

    /* ---- Objects that die and come back. How those of a class are freed; whether the class wants to know. */
    typedef void (*mt_destructor)(PyObject *o);
    static inline mt_destructor *mt_dealloc_of(PyObject *type) { return &((PyTypeObject *)type)->tp_dealloc; }
    static inline int mt_has_finalizer(PyObject *o) { return Py_TYPE(o)->tp_finalize || Py_TYPE(o)->tp_del; }
    static inline Py_ssize_t mt_basicsize(PyObject *o) { return Py_TYPE(o)->tp_basicsize; }
    /* Where its `__dict__` is, if it has one: in the object in 3.10, in front of it from 3.11 on; NULL: it cannot have
       one. */
    static inline PyObject **mt_attributes(PyObject *o) { return _PyObject_GetDictPtr(o); }
    /* Has it weak references? Their list is in the object until 3.11, in front of it from 3.12 on. */
    static inline int mt_has_weakrefs(PyObject *o) {
        return PyType_SUPPORTS_WEAKREFS(Py_TYPE(o)) && *PyObject_GET_WEAKREFS_LISTPTR(o);
    }
    /* Has nobody it but the object that dies? Whoever borrows it (3.14) has it from one who is counted. */
    static inline int mt_is_unshared(PyObject *attributes) { return Py_REFCNT(attributes) == 1; }
    static inline void mt_let_go(PyObject *o) { PyObject_GC_UnTrack(o); }
    static inline PyObject *mt_again(PyObject *o) {
        _Py_NewReference(o);
        PyObject_GC_Track(o);
        return o;
    }

    /* ---- Weak references. 3.13 takes the borrowed answer away. */
    static inline int mt_is_referent(PyObject *wr, PyObject *ob) {
        PyObject *got = NULL;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyWeakref_GetRef(wr, &got) < 0) PyErr_Clear();
        Py_XDECREF(got);
    #else
        got = PyWeakref_GET_OBJECT(wr);
    #endif
        return got == ob;
    }
    static inline int mt_alive(PyObject *wr) { return !mt_is_referent(wr, NULL) && !mt_is_referent(wr, Py_None); }

    /* ---- Variables of frames. Until 3.12 a function's frame keeps the copy that `f_locals` gives: has nobody it but
       the frame and `held` others? From 3.13 on there is no copy: one of 3.14's borrowed references would not be in
       the count. */
    static inline int mt_is_kept_copy(PyObject *variables, Py_ssize_t held) {
    #if PY_VERSION_HEX >= 0x030D0000
        (void)variables; (void)held;
        return 0;
    #else
        return PyDict_CheckExact(variables) && Py_REFCNT(variables) == held + 1;
    #endif
    }

    /* ---- Frames: where the program is. */
    typedef struct mt_frame mt_frame;
    static inline int mt_code_line(PyObject *c, int lasti) { return PyCode_Addr2Line((PyCodeObject *)c, lasti); }
    static inline int mt_public_lasti(PyFrameObject *f) {
    #if PY_VERSION_HEX >= 0x030B0000
        return PyFrame_GetLasti(f);
    #else
        return f->f_lasti < 0 ? f->f_lasti : f->f_lasti * 2;   /* 3.10 counts instructions, not bytes */
    #endif
    }
    static inline PyObject *mt_public_code(PyFrameObject *f) {
        PyCodeObject *code = PyFrame_GetCode(f);
        Py_DECREF(code);                       /* the frame's own reference stays */
        return (PyObject *)code;
    }
    static int mt_inner_frames;                /* 0: the public functions are used, which is slower */
    #if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
    /* 3.11 alone: the interpreter's own frames. PyEval_GetFrame makes an object of each, which the program would not
       have. Used once mt_look_inside has found that they are what the public functions say. */
    #ifndef Py_BUILD_CORE
    #define Py_BUILD_CORE 1
    #endif
    #include "internal/pycore_frame.h"
    static inline _PyInterpreterFrame *mt_whole(_PyInterpreterFrame *f) {     /* skips those just being set up */
        while (f && _PyFrame_IsIncomplete(f)) f = f->previous;
        return f;
    }
    static inline _PyInterpreterFrame *mt_inner_now(void) {
        PyThreadState *state = _PyThreadState_UncheckedGet();
        return state ? mt_whole(state->cframe->current_frame) : NULL;
    }
    static inline int mt_inner_lasti(_PyInterpreterFrame *f) {
        int at = _PyInterpreterFrame_LASTI(f);
        return at < 0 ? -1 : at * (int)sizeof(_Py_CODEUNIT);
    }
    static int mt_look_inside(int allowed) {
        PyFrameObject *f = PyEval_GetFrame(), *back;
        _PyInterpreterFrame *inner = mt_inner_now();
        mt_inner_frames = allowed && f && inner && (PyObject *)inner->f_code == mt_public_code(f)
            && mt_inner_lasti(inner) == mt_public_lasti(f);
        if (!mt_inner_frames) return 0;
        back = PyFrame_GetBack(f);
        inner = mt_whole(inner->previous);
        mt_inner_frames = !back == !inner && (!back || (PyObject *)inner->f_code == mt_public_code(back));
        Py_XDECREF(back);
        return mt_inner_frames;
    }
    #define MT_IF_INNER(f, answer) if (mt_inner_frames) { \
        _PyInterpreterFrame *inner = (_PyInterpreterFrame *)(f); (void)inner; return answer; }
    #else
    static int mt_look_inside(int allowed) { (void)allowed; return 0; }
    #define MT_IF_INNER(f, answer)
    #endif
    static inline mt_frame *mt_frame_now(void) {
        PyFrameObject *f;
        MT_IF_INNER(NULL, (mt_frame *)mt_inner_now())
        f = PyEval_GetFrame();
        Py_XINCREF(f);
        return (mt_frame *)f;
    }
    static inline mt_frame *mt_frame_back(mt_frame *f) {
        PyFrameObject *back;
        MT_IF_INNER(f, (mt_frame *)mt_whole(inner->previous))
        back = PyFrame_GetBack((PyFrameObject *)f);
        if (!back) PyErr_Clear();              /* no memory to make the frame visible: the line is unknown */
        Py_DECREF((PyObject *)f);
        return (mt_frame *)back;
    }
    static inline PyObject *mt_frame_code(mt_frame *f) {
        MT_IF_INNER(f, (PyObject *)inner->f_code)
        return mt_public_code((PyFrameObject *)f);
    }
    /* The instruction at which 3.11 runs a call that it has specialized, before the call's own; else 0. */
    #if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
    #define MT_PRECALL 166
    #else
    #define MT_PRECALL 0
    #endif
    static inline PyObject *mt_code_name(PyObject *c) { return ((PyCodeObject *)c)->co_name; }
    static inline int mt_frame_lasti(mt_frame *f) {
        MT_IF_INNER(f, mt_inner_lasti(inner))
        return mt_public_lasti((PyFrameObject *)f);
    }
    /* The object of the frame that Python code sees, borrowed; NULL: there is none yet. */
    static inline PyObject *mt_frame_made(mt_frame *f) {
        MT_IF_INNER(f, (PyObject *)inner->frame_obj)
        return (PyObject *)f;
    }
    /* An argument of its function, one of the first in `co_varnames`, as a new reference; NULL: it has none, or nobody
       says. Asking for all of its variables would make them live longer. 3.12 has a function for one; 3.11 none. */
    static inline PyObject *mt_frame_argument(mt_frame *f, int i) {
        PyObject *value = NULL;
        PyCodeObject *code = (PyCodeObject *)mt_frame_code(f);
    #if PY_VERSION_HEX >= 0x030C0000
        value = PyFrame_GetVar((PyFrameObject *)f, PyTuple_GET_ITEM(code->co_localsplusnames, i));
        if (!value) PyErr_Clear();
        return value;
    #elif PY_VERSION_HEX >= 0x030B0000
        (void)code;
        if (mt_inner_frames) value = ((_PyInterpreterFrame *)f)->localsplus[i];
    #else
        value = ((PyFrameObject *)f)->f_localsplus[i];
        if (!value && code->co_cell2arg)       /* a function within it has it, too */
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(code->co_cellvars); k++)
                if (code->co_cell2arg[k] == i) value = ((PyFrameObject *)f)->f_localsplus[code->co_nlocals + k];
    #endif
        if (value && PyCell_Check(value)) value = PyCell_GET(value);
        Py_XINCREF(value);
        return value;
    }
    static inline PyObject *mt_frame_first(mt_frame *f) {
        return ((PyCodeObject *)mt_frame_code(f))->co_argcount < 1 ? NULL : mt_frame_argument(f, 0);
    }
    static inline void mt_frame_free(mt_frame *f) {
        MT_IF_INNER(f, )
        Py_DECREF((PyObject *)f);
    }

    /* ---- Trace functions in C. Without an object for it, `sys.gettrace()` is None. */
    static inline void mt_set_tracer(void *call) { PyEval_SetTrace((Py_tracefunc)call, NULL); }
    static inline PyObject *mt_traced_code(PyObject *frame) { return mt_public_code((PyFrameObject *)frame); }
    static inline void *mt_tracer(void) { return (void *)PyThreadState_Get()->c_tracefunc; }

    /* ---- Python without its lock: the engine's tables rely on it. */
    #ifdef Py_GIL_DISABLED
    #error "mindtorch needs a Python with its global lock: build for the ordinary Python, not for the free-threaded one"
    #endif
    """
    ctypedef struct PyMethodDef:
        const char *ml_name
    ctypedef struct PyGetSetDef:
        const char *name
    ctypedef struct mt_frame:
        pass
    PyMethodDef **mt_definition(PyObject *f) noexcept
    PyGetSetDef **mt_attribute(PyObject *descr) noexcept
    void **mt_constructor(PyObject *type) noexcept
    ctypedef object (*mt_binary)(object, object)
    mt_binary *mt_subscript(PyObject *type) noexcept
    object mt_copy(object f)
    void mt_set_vectorcall(PyObject *f, void *call) noexcept
    object mt_ask(object descr, object obj)
    Py_ssize_t mt_slot_offset(PyObject *descr) noexcept
    PyObject *MT_SLOT(PyObject *obj, Py_ssize_t off) noexcept
    void MT_SET_SLOT(PyObject *obj, Py_ssize_t off, PyObject *val) noexcept
    bint mt_is_a(PyObject *o, PyObject *kind) noexcept     # kind: a class
    PyObject *mt_class_name(PyObject *obj) noexcept
    ctypedef void (*mt_destructor)(PyObject *o) noexcept
    mt_destructor *mt_dealloc_of(PyObject *type) noexcept
    bint mt_has_finalizer(PyObject *o) noexcept
    Py_ssize_t mt_basicsize(PyObject *o) noexcept
    PyObject **mt_attributes(PyObject *o) noexcept
    bint mt_has_weakrefs(PyObject *o) noexcept
    bint mt_is_unshared(PyObject *attributes) noexcept
    void mt_let_go(PyObject *o) noexcept       # of a dying object: the garbage collector does not see it any more
    object mt_again(PyObject *o)               # it lives again
    bint mt_is_referent(PyObject *wr, PyObject *ob) noexcept
    bint mt_alive(PyObject *wr) noexcept
    bint mt_is_kept_copy(PyObject *variables, Py_ssize_t held) noexcept
    int mt_code_line(PyObject *code, int lasti) noexcept
    bint mt_look_inside(bint allowed) noexcept     # are the interpreter's own frames read from now on?
    mt_frame *mt_frame_now() noexcept          # NULL where no Python runs; owned
    mt_frame *mt_frame_back(mt_frame *frame) noexcept      # frees it
    PyObject *mt_frame_code(mt_frame *frame) noexcept      # borrowed from it
    const int MT_PRECALL
    PyObject *mt_code_name(PyObject *code) noexcept        # borrowed from it, interned
    int mt_frame_lasti(mt_frame *frame) noexcept
    PyObject *mt_frame_made(mt_frame *frame) noexcept      # borrowed from it
    PyObject *mt_frame_argument(mt_frame *frame, int i) noexcept   # owned
    PyObject *mt_frame_first(mt_frame *frame) noexcept     # that of a positional argument; owned
    void mt_frame_free(mt_frame *frame) noexcept
    void mt_set_tracer(void *call) except *    # of the calling thread; NULL: none
    void *mt_tracer() noexcept
    PyObject *mt_traced_code(PyObject *frame) noexcept     # borrowed from it
    enum:
        PyTrace_CALL
        PyTrace_LINE

cdef PyObject *METHOD_WRAPPER              # the type of ``descriptor.__set__``; 3.13 hides its C name
