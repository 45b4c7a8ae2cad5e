/* What most bytes of clients are, without an object for each step: see plain.py, which says what these
 * functions do, and where Python does the same.
 *
 * Nothing is allocated for what a header claims, only for what is there.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define MOST_DIGITS 9      /* of a count or a length; a longer one is not plain */
#define MOST_COMMANDS 1024 /* of a payload; one with more is not plain */
#define MOST_COUNTED 1000  /* of what a client has sent: RUN_COMMANDS of routes.py */
#define HEAD_BYTES 24      /* "$", the length of a value, and two line ends */
#define ENTRY_BYTES 256    /* what one more entry costs is about what so many of its bytes do */

static PyObject *names[4]; /* of an entry's attributes */

typedef struct {
    const char *at;
    const char *end;
} Cursor;

/* Step over "<kind><number>\r\n", the number as it is usually written; -1 if that is not there. */
static Py_ssize_t read_header(Cursor *cursor, char kind)
{
    const char *p = cursor->at, *end = cursor->end;
    Py_ssize_t number = 0;
    int digits = 0;
    if (p == end || *p != kind)
        return -1;
    for (p++; p < end && *p >= '0' && *p <= '9' && digits < MOST_DIGITS; p++, digits++)
        number = 10 * number + (*p - '0');
    if (digits == 0 || (digits > 1 && p[-digits] == '0') || end - p < 2 || p[0] != '\r' || p[1] != '\n')
        return -1;
    cursor->at = p + 2;
    return number;
}

/* Step over a bulk string and point to its bytes; -1 if no whole one is there. */
static Py_ssize_t read_bulk(Cursor *cursor, const char **bytes)
{
    Py_ssize_t length = read_header(cursor, '$');
    const char *p = cursor->at;
    if (length < 0 || cursor->end - p < length + 2 || p[length] != '\r' || p[length + 1] != '\n')
        return -1;
    *bytes = p;
    cursor->at = p + length + 2;
    return length;
}

/* Step over the name of a command if it is this one of three small letters, however it is spelt. */
static int read_name(Cursor *cursor, const char *wanted)
{
    const char *name;
    return read_bulk(cursor, &name) == 3 && (name[0] | 32) == wanted[0] &&
           (name[1] | 32) == wanted[1] && (name[2] | 32) == wanted[2];
}

/* Take one command; NULL without an exception if no whole one is there. */
static PyObject *take_command(Cursor *cursor, Py_ssize_t most)
{
    Py_ssize_t count = read_header(cursor, '*');
    if (count < 1 || count > most || count > (cursor->end - cursor->at) / 6) /* $0 CRLF CRLF */
        return NULL;
    PyObject *command = PyList_New(count);
    if (command == NULL)
        return NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        const char *bytes;
        Py_ssize_t length = read_bulk(cursor, &bytes);
        PyObject *argument = length < 0 ? NULL : PyBytes_FromStringAndSize(bytes, length);
        if (argument == NULL) {
            Py_DECREF(command);
            return NULL;
        }
        PyList_SET_ITEM(command, n, argument);
    }
    return command;
}

static PyObject *split_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "split_untrusted(data, most)");
    Py_ssize_t most = PyLong_AsSsize_t(args[1]);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    const char *start = PyBytes_AS_STRING(args[0]);
    Cursor cursor = {start, start + PyBytes_GET_SIZE(args[0])};
    PyObject *commands = PyList_New(0);
    if (commands == NULL)
        return NULL;
    const char *taken = start;
    while (cursor.at < cursor.end) {
        PyObject *command = take_command(&cursor, most);
        if (command == NULL)
            break;
        int failed = PyList_Append(commands, command);
        Py_DECREF(command);
        if (failed)
            break;
        taken = cursor.at;
    }
    if (PyErr_Occurred()) {
        Py_DECREF(commands);
        return NULL;
    }
    return Py_BuildValue("Nn", commands, (Py_ssize_t)(taken - start));
}

/* Step over a SET or a GET and say which: how many arguments it has; 0 if it is anything else. */
static Py_ssize_t skip_command(Cursor *cursor)
{
    const char *bytes;
    Py_ssize_t count = read_header(cursor, '*');
    if (count == 3 ? !read_name(cursor, "set") : count != 2 || !read_name(cursor, "get"))
        return 0;
    for (Py_ssize_t n = 1; n < count; n++)
        if (read_bulk(cursor, &bytes) < 0)
            return 0;
    return count;
}

static PyObject *count_untrusted(PyObject *Py_UNUSED(module), PyObject *data)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "count_untrusted(data)");
    const char *start = PyBytes_AS_STRING(data);
    Cursor cursor = {start, start + PyBytes_GET_SIZE(data)};
    Py_ssize_t kind = 0, count = 0;
    while (cursor.at < cursor.end) {
        Py_ssize_t found = skip_command(&cursor);
        if (found == 0 || (count && found != kind) || count == MOST_COUNTED)
            return PyLong_FromLong(0);
        kind = found;
        count++;
    }
    return PyLong_FromSsize_t(kind == 3 ? count : -count);
}

/* A SET of a payload, as it lies there. */
typedef struct {
    const char *key, *value;
    Py_ssize_t key_length, value_length;
} Set;

/* Find the SETs of a payload that is nothing else; their number, 0 if it is anything else. */
static Py_ssize_t find_sets(PyObject *payload, Set *sets)
{
    const char *start = PyBytes_AS_STRING(payload);
    Cursor cursor = {start, start + PyBytes_GET_SIZE(payload)};
    Py_ssize_t count = 0;
    while (cursor.at < cursor.end) {
        Set *set = &sets[count];
        if (count++ == MOST_COMMANDS || read_header(&cursor, '*') != 3 ||
            !read_name(&cursor, "set") || (set->key_length = read_bulk(&cursor, &set->key)) < 0 ||
            (set->value_length = read_bulk(&cursor, &set->value)) < 0)
            return 0;
    }
    return count;
}

/* Whether none of the keys is in a dictionary; -1 with an exception. */
static int are_not_in(PyObject *dict, const Set *sets, Py_ssize_t count)
{
    int found = 0;
    for (Py_ssize_t n = 0; n < count && found == 0 && PyDict_GET_SIZE(dict); n++) {
        PyObject *key = PyBytes_FromStringAndSize(sets[n].key, sets[n].key_length);
        if (key == NULL)
            return -1;
        found = PyDict_Contains(dict, key);
        Py_DECREF(key);
    }
    return found < 0 ? -1 : !found;
}

/* A memtable (storage/tables_layer.py), and how much there is more of what. */
typedef struct {
    PyObject *records, *fresh;
    Py_ssize_t added, present, bytes;
} Memtable;

/* Put a record that never expires: a tuple of value, 0, revision, tag. */
static int put(Memtable *table, PyObject *key, PyObject *value, PyObject *revision, PyObject *tag)
{
    PyObject *never = PyLong_FromLong(0), *record = NULL, *old;
    int failed = -1;
    if (never == NULL || (record = PyTuple_Pack(4, value, never, revision, tag)) == NULL)
        goto done;
    PyObject_GC_UnTrack(record); /* nothing in it can lead back to it */
    old = PyDict_GetItemWithError(table->records, key);
    if (old == NULL) {
        if (PyErr_Occurred() || PyList_Append(table->fresh, key))
            goto done;
        table->added++;
        table->present++;
        table->bytes += PyBytes_GET_SIZE(key);
    } else if (old == Py_None) { /* deleted */
        table->present++;
    } else {
        table->bytes -= PyBytes_GET_SIZE(PyTuple_GET_ITEM(old, 0));
    }
    table->bytes += PyBytes_GET_SIZE(value);
    failed = PyDict_SetItem(table->records, key, record);
done:
    Py_XDECREF(never);
    Py_XDECREF(record);
    return failed;
}

static int put_sets(Memtable *table, const Set *sets, Py_ssize_t count, PyObject *revision, PyObject *tag)
{
    int failed = 0;
    for (const Set *set = sets; set < sets + count && !failed; set++) {
        PyObject *key = PyBytes_FromStringAndSize(set->key, set->key_length);
        PyObject *value = PyBytes_FromStringAndSize(set->value, set->value_length);
        failed = key == NULL || value == NULL ? -1 : put(table, key, value, revision, tag);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return failed;
}

/* The payload of an entry that is a command, of no session and with none of the flags; NULL without
 * an exception if it is none such. */
static PyObject *plain_payload(PyObject *entry, PyObject *kind, long flags)
{
    PyObject *found[4] = {NULL, NULL, NULL, NULL}, *payload = NULL;
    for (int n = 0; n < 4; n++)
        if ((found[n] = PyObject_GetAttr(entry, names[n])) == NULL)
            goto done;
    int of_session = PyObject_IsTrue(found[1]);
    long own = PyLong_AsLong(found[2]);
    if (of_session == 0 && !PyErr_Occurred() && found[0] == kind && !(own & flags) &&
        PyBytes_CheckExact(found[3]))
        payload = Py_NewRef(found[3]);
done:
    for (int n = 0; n < 4; n++)
        Py_XDECREF(found[n]);
    return payload;
}

static PyObject *apply_sets(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *kind, *expiring, *tag;
    Memtable table = {NULL, NULL, 0, 0, 0};
    Py_ssize_t start, room;
    long flags;
    long long revision;
    if (!PyArg_ParseTuple(args, "O!nOlLOnO!O!O!", &PyList_Type, &entries, &start, &kind, &flags, &revision,
                          &tag, &room, &PyDict_Type, &table.records, &PyList_Type, &table.fresh, &PyDict_Type,
                          &expiring))
        return NULL;
    if (start < 0)
        return PyErr_Format(PyExc_ValueError, "entries begin at 0, not %zd", start);
    PyObject *counts = PyList_New(0);
    if (counts == NULL)
        return NULL;
    for (Py_ssize_t at = start; at < PyList_GET_SIZE(entries) && room > 0; at++) {
        Set sets[MOST_COMMANDS];
        PyObject *payload = plain_payload(PyList_GET_ITEM(entries, at), kind, flags);
        Py_ssize_t count = payload == NULL ? 0 : find_sets(payload, sets);
        int plain = count ? are_not_in(expiring, sets, count) : 0;
        if (plain > 0) {
            PyObject *own = PyLong_FromLongLong(revision + at), *done = PyLong_FromSsize_t(count);
            if (own == NULL || done == NULL || put_sets(&table, sets, count, own, tag) || PyList_Append(counts, done))
                plain = -1;
            Py_XDECREF(own);
            Py_XDECREF(done);
            room -= PyBytes_GET_SIZE(payload) + ENTRY_BYTES;
        }
        Py_XDECREF(payload);
        if (plain <= 0)
            break;
    }
    if (PyErr_Occurred()) {
        Py_DECREF(counts);
        return NULL;
    }
    return Py_BuildValue("Nnnn", counts, table.added, table.present, table.bytes);
}

/* The values of a payload that is nothing but GETs of keys that are in a dictionary and never expire;
 * their number, 0 if it is anything else, -1 with an exception. */
static Py_ssize_t find_values(PyObject *payload, PyObject *records, PyObject **values)
{
    const char *start = PyBytes_AS_STRING(payload), *bytes;
    Cursor cursor = {start, start + PyBytes_GET_SIZE(payload)};
    Py_ssize_t count = 0, length;
    while (cursor.at < cursor.end) {
        if (count == MOST_COMMANDS || read_header(&cursor, '*') != 2 || !read_name(&cursor, "get") ||
            (length = read_bulk(&cursor, &bytes)) < 0)
            return 0;
        PyObject *key = PyBytes_FromStringAndSize(bytes, length);
        if (key == NULL)
            return -1;
        PyObject *record = PyDict_GetItemWithError(records, key);
        Py_DECREF(key);
        if (record == NULL && PyErr_Occurred())
            return -1;
        if (record == NULL || record == Py_None || PyObject_IsTrue(PyTuple_GET_ITEM(record, 1)))
            return 0;
        values[count++] = PyTuple_GET_ITEM(record, 0); /* borrowed: nothing runs before the end */
    }
    return count;
}

static PyObject *answer_gets(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *values[MOST_COMMANDS];
    if (count != 3 || !PyBytes_CheckExact(args[0]) || !PyDict_CheckExact(args[2]))
        return PyErr_Format(PyExc_TypeError, "answer_gets(payload, room, records)");
    Py_ssize_t size = 0, room = PyLong_AsSsize_t(args[1]);
    if (room == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t found = find_values(args[0], args[2], values);
    if (found < 0)
        return NULL;
    for (Py_ssize_t n = 0; n < found; n++)
        size += PyBytes_GET_SIZE(values[n]) + HEAD_BYTES;
    if (found == 0 || size > room)
        Py_RETURN_NONE;
    PyObject *reply = PyBytes_FromStringAndSize(NULL, size);
    if (reply == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(reply);
    for (Py_ssize_t n = 0; n < found; n++) {
        Py_ssize_t length = PyBytes_GET_SIZE(values[n]);
        at += sprintf(at, "$%zd\r\n", length);
        memcpy(at, PyBytes_AS_STRING(values[n]), length);
        memcpy(at + length, "\r\n", 2);
        at += length + 2;
    }
    _PyBytes_Resize(&reply, at - PyBytes_AS_STRING(reply));
    return reply;
}

static PyMethodDef methods[] = {
    {"count_untrusted", count_untrusted, METH_O, "count_untrusted(data)\n--\n\nSee plain.py."},
    {"answer_gets", (PyCFunction)(void (*)(void))answer_gets, METH_FASTCALL,
     "answer_gets(payload, room, records)\n--\n\nSee plain.py."},
    {"split_untrusted", (PyCFunction)(void (*)(void))split_untrusted, METH_FASTCALL,
     "split_untrusted(data, most)\n--\n\nSee plain.py."},
    {"apply_sets", apply_sets, METH_VARARGS,
     "apply_sets(entries, start, kind, flags, revision, tag, room, records, fresh, expiring)\n--\n\nSee plain.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *Py_UNUSED(module))
{
    static const char *const words[4] = {"kind", "session", "flags", "payload"};
    for (int n = 0; n < 4; n++)
        if (names[n] == NULL && (names[n] = PyUnicode_InternFromString(words[n])) == NULL)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_plain", "See plain.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__plain(void)
{
    return PyModuleDef_Init(&module);
}
