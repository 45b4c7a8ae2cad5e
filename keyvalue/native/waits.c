/* Tasks that wait for what becomes of their SETs: see waits.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#define SET "*3\r\n$3\r\nSET\r\n"
#define MOST_KEPT 1024 /* waits that are over, for those that come; each takes half a kilobyte */

typedef struct Wait Wait;

typedef struct {
    PyTypeObject *waits, *wait;
    PyObject *payloads, *tasks, *withdraw, *unwrap; /* names */
} State;

/* How tasks wait. */
typedef struct {
    PyObject_HEAD
    PyObject *pause, *current_task, *done, *reply;
    Wait *kept;
    Py_ssize_t count;
} Waits;

/* The wait of one task; then, one after the other, of others. */
struct Wait {
    PyObject_HEAD
    Waits *owner;
    PyObject *trap;   /* what the task yields to trio; it calls this wait if the task is cancelled */
    PyObject *waited; /* what the task waits for; NULL when it is over */
    Py_ssize_t place;
    bool begun;
    Wait *next; /* of those that are kept */
};

static State *state_of(PyTypeObject *type)
{
    return PyType_GetModuleState(type);
}

static int traverse_wait(Wait *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->trap);
    Py_VISIT(self->waited);
    Py_VISIT(self->next);
    return 0;
}

static int clear_wait(Wait *self)
{
    Py_CLEAR(self->owner);
    Py_CLEAR(self->trap);
    Py_CLEAR(self->waited);
    Py_CLEAR(self->next);
    return 0;
}

static int traverse_waits(Waits *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->pause);
    Py_VISIT(self->current_task);
    Py_VISIT(self->done);
    Py_VISIT(self->reply);
    Py_VISIT(self->kept);
    return 0;
}

static int clear_waits(Waits *self)
{
    Py_CLEAR(self->pause);
    Py_CLEAR(self->current_task);
    Py_CLEAR(self->done);
    Py_CLEAR(self->reply);
    Py_CLEAR(self->kept);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (type->tp_clear != NULL)
        type->tp_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int init_waits(Waits *self, PyObject *args, PyObject *named)
{
    if (named != NULL && PyDict_GET_SIZE(named) != 0)
        return PyErr_Format(PyExc_TypeError, "Waits takes no names"), -1;
    PyObject *pause, *current_task, *done, *reply;
    if (self->pause != NULL || !PyArg_ParseTuple(args, "OOOO", &pause, &current_task, &done, &reply))
        return self->pause != NULL ? (PyErr_Format(PyExc_TypeError, "Waits are there already"), -1) : -1;
    self->pause = Py_NewRef(pause);
    self->current_task = Py_NewRef(current_task);
    self->done = Py_NewRef(done);
    self->reply = Py_NewRef(reply);
    return 0;
}

/* Return a wait that is over, or a new one. */
static Wait *take(Waits *self, State *state)
{
    Wait *wait = self->kept;
    if (wait != NULL) {
        self->kept = wait->next;
        self->count--;
        wait->next = NULL;
        return wait;
    }
    wait = (Wait *)state->wait->tp_alloc(state->wait, 0);
    if (wait == NULL)
        return NULL;
    wait->owner = (Waits *)Py_NewRef(self);
    wait->trap = PyObject_CallOneArg(self->pause, (PyObject *)wait);
    if (wait->trap == NULL)
        Py_CLEAR(wait);
    return wait;
}

/* It is over, and there for another one. */
static void keep(Wait *self)
{
    Waits *owner = self->owner;
    Py_CLEAR(self->waited);
    if (owner->count >= MOST_KEPT) {
        Py_CLEAR(self->trap); /* which leads back to it */
        return;
    }
    self->next = owner->kept;
    owner->kept = (Wait *)Py_NewRef(self);
    owner->count++;
}

static int digits_of(Py_ssize_t length)
{
    int digits = 1;
    while ((length /= 10) != 0)
        digits++;
    return digits;
}

/* Write "$<length>\r\n<bytes>\r\n"; return where it ends. */
static char *write_bulk(char *at, PyObject *bytes)
{
    Py_ssize_t length = PyBytes_GET_SIZE(bytes), left = length;
    int digits = digits_of(length);
    *at = '$';
    for (char *p = at + digits; p > at; p--, left /= 10)
        *p = (char)('0' + left % 10);
    at += 1 + digits;
    memcpy(at, "\r\n", 2);
    memcpy(at + 2, PyBytes_AS_STRING(bytes), length);
    memcpy(at + 2 + length, "\r\n", 2);
    return at + length + 4;
}

/* As encode_set of resp.py. */
static PyObject *encode_set(PyObject *key, PyObject *value)
{
    if (!PyBytes_Check(key) || !PyBytes_Check(value))
        return PyErr_Format(PyExc_TypeError, "expected bytes");
    Py_ssize_t sizes[] = {PyBytes_GET_SIZE(key), PyBytes_GET_SIZE(value)};
    Py_ssize_t size = sizeof SET - 1;
    for (int i = 0; i < 2; i++)
        size += 5 + digits_of(sizes[i]) + sizes[i];
    PyObject *payload = PyBytes_FromStringAndSize(NULL, size);
    if (payload != NULL) {
        char *at = PyBytes_AS_STRING(payload);
        memcpy(at, SET, sizeof SET - 1);
        write_bulk(write_bulk(at + sizeof SET - 1, key), value);
    }
    return payload;
}

/* Put a SET and the present task in their places; return where, -1 with an exception. */
static Py_ssize_t put(PyObject *payloads, PyObject *tasks, PyObject *payload, PyObject *current_task)
{
    PyObject *task = payload == NULL ? NULL : PyObject_CallNoArgs(current_task);
    Py_ssize_t place = PyList_GET_SIZE(payloads);
    int failed = task == NULL || PyList_Append(payloads, payload) < 0;
    if (!failed && PyList_Append(tasks, task) < 0) {
        PyList_SetSlice(payloads, place, place + 1, NULL);
        failed = 1;
    }
    Py_XDECREF(task);
    Py_XDECREF(payload);
    return failed ? -1 : place;
}

static PyObject *wait_for(Waits *self, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of(Py_TYPE(self));
    if (count != 3 || self->pause == NULL)
        return PyErr_Format(PyExc_TypeError, "wait(waited, key, value)");
    PyObject *payloads = PyObject_GetAttr(args[0], state->payloads), *tasks = NULL;
    Wait *wait = NULL;
    if (payloads == NULL || (tasks = PyObject_GetAttr(args[0], state->tasks)) == NULL)
        goto end;
    if (!PyList_CheckExact(payloads) || !PyList_CheckExact(tasks)) {
        PyErr_Format(PyExc_TypeError, "expected lists");
        goto end;
    }
    if ((wait = take(self, state)) == NULL)
        goto end;
    wait->begun = false;
    if ((wait->place = put(payloads, tasks, encode_set(args[1], args[2]), self->current_task)) < 0) {
        keep(wait);
        Py_CLEAR(wait);
    } else
        wait->waited = Py_NewRef(args[0]);
end:
    Py_XDECREF(payloads);
    Py_XDECREF(tasks);
    return (PyObject *)wait;
}

/* Begin to wait, or go on with an outcome. */
static PySendResult go_on(PyObject *object, PyObject *outcome, PyObject **result)
{
    Wait *self = (Wait *)object;
    *result = NULL;
    if (self->waited == NULL || self->owner == NULL || (outcome == Py_None) != !self->begun) {
        PyErr_Format(PyExc_RuntimeError, "a wait is awaited once, by a task of trio");
        return PYGEN_ERROR;
    }
    if (!self->begun) {
        self->begun = true;
        *result = Py_NewRef(self->trap);
        return PYGEN_NEXT;
    }
    keep(self);
    if (outcome == self->owner->done)
        *result = Py_NewRef(self->owner->reply);
    else
        *result = PyObject_CallMethodNoArgs(outcome, state_of(Py_TYPE(self))->unwrap);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

/* What has no value to send can only begin to wait. */
static PyObject *next(PyObject *self)
{
    PyObject *result;
    go_on(self, Py_None, &result);
    return result;
}

/* As go_on; by this name it is called by CPython from 3.12 on, and before while a program is traced. */
static PyObject *send(PyObject *self, PyObject *outcome)
{
    PyObject *result, *stop;
    if (go_on(self, outcome, &result) != PYGEN_RETURN)
        return result;
    if ((stop = PyObject_CallOneArg(PyExc_StopIteration, result)) != NULL)
        PyErr_SetObject(PyExc_StopIteration, stop);
    Py_XDECREF(stop);
    Py_DECREF(result);
    return NULL;
}

/* The task is cancelled. */
static PyObject *call(Wait *self, PyObject *args, PyObject *named)
{
    PyObject *raise;
    if ((named != NULL && PyDict_GET_SIZE(named) != 0) || !PyArg_ParseTuple(args, "O", &raise))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "wait(raise)");
    if (self->waited == NULL)
        return PyErr_Format(PyExc_RuntimeError, "this wait is over");
    PyObject *place = PyLong_FromSsize_t(self->place), *waited = Py_NewRef(self->waited), *abort = NULL;
    if (place != NULL)
        abort = PyObject_CallMethodObjArgs(waited, state_of(Py_TYPE(self))->withdraw, place, raise, NULL);
    Py_XDECREF(place);
    Py_DECREF(waited);
    return abort;
}

static PyMethodDef wait_methods[] = {
    {"send", send, METH_O, "send(outcome)\n--\n\nAs a coroutine's."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef waits_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))wait_for, METH_FASTCALL, "wait(waited, key, value)\n--\n\nSee waits.py."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot waits_slots[] = {
    {Py_tp_init, init_waits},     {Py_tp_traverse, traverse_waits}, {Py_tp_clear, clear_waits},
    {Py_tp_dealloc, dealloc},     {Py_tp_methods, waits_methods},   {0, NULL},
};

static PyType_Spec waits_spec = {
    "quorate.keyvalue.native._waits.Waits", sizeof(Waits), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, waits_slots,
};

static PyType_Slot wait_slots[] = {
    {Py_tp_traverse, traverse_wait}, {Py_tp_clear, clear_wait},      {Py_tp_dealloc, dealloc},
    {Py_tp_call, call},              {Py_am_await, PyObject_SelfIter}, {Py_am_send, go_on},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, next},         {Py_tp_methods, wait_methods},
    {0, NULL},
};

static PyType_Spec wait_spec = {
    "quorate.keyvalue.native._waits.Wait", sizeof(Wait), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, wait_slots,
};

static int prepare(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->waits = (PyTypeObject *)PyType_FromModuleAndSpec(module, &waits_spec, NULL);
    state->wait = (PyTypeObject *)PyType_FromModuleAndSpec(module, &wait_spec, NULL);
    state->payloads = PyUnicode_InternFromString("payloads");
    state->tasks = PyUnicode_InternFromString("tasks");
    state->withdraw = PyUnicode_InternFromString("withdraw");
    state->unwrap = PyUnicode_InternFromString("unwrap");
    if (state->waits == NULL || state->wait == NULL || PyErr_Occurred())
        return -1;
    return PyModule_AddType(module, state->waits);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->waits);
    Py_VISIT(state->wait);
    return 0;
}

static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->waits);
    Py_CLEAR(state->wait);
    Py_CLEAR(state->payloads);
    Py_CLEAR(state->tasks);
    Py_CLEAR(state->withdraw);
    Py_CLEAR(state->unwrap);
    return 0;
}

static void free_state(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_waits", "See waits.py.", sizeof(State), NULL, slots, traverse, clear, free_state,
};

PyMODINIT_FUNC PyInit__waits(void)
{
    return PyModuleDef_Init(&module);
}
