/* What most bytes of clients are, without an object for each step: see plain.py, which says what these
 * functions do, and where Python does the same.
 *
 * Nothing is allocated for what a header claims, only for what is there.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define MOST_DIGITS 9      /* of a count or a length; a longer one is not plain */
#define MOST_COMMANDS 1024 /* of a payload, or keys that it sets; one with more is not plain */
#define MOST_COUNTED 1000  /* of what a client has sent: RUN_COMMANDS of routes.py */
#define MOST_READY 512     /* sockets that are looked at in one call */
#define RECEIVE_BYTES (64 << 10) /* of each; and of all of them about */
#define TURN_BYTES (1 << 20)
#define HEAD_BYTES 24      /* "$", the length of a value, and two line ends */
#define RECORD_FIELDS 4    /* see storage/tables/memtable.py */
#define PUT_AT_ONCE 32     /* records: what they touch has to fit the innermost cache */
#define ENTRY_BYTES 256    /* what one more entry costs is about what so many of its bytes do */
#define KEY_BYTES 100      /* likewise, what is set of a memtable that is in no cache */

/* How the bytes of a batch lie: see storage/log/batch.py. */
#define BATCH_HEAD_BYTES 64
#define BATCH_COUNT_AT 48
#define DESCRIPTOR_BYTES 32

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

/* Step over the name of a command if it is this one of small letters, however it is spelt. */
static int read_name(Cursor *cursor, const char *wanted)
{
    const char *name;
    Cursor behind = *cursor;
    if (read_bulk(&behind, &name) != (Py_ssize_t)strlen(wanted))
        return 0;
    for (; *wanted; name++, wanted++)
        if ((*name | 32) != *wanted)
            return 0;
    *cursor = behind;
    return 1;
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

/* How many SETs, or minus how many GETs, if there is nothing else; 0 if there is. */
static Py_ssize_t count_plain(Cursor cursor)
{
    Py_ssize_t kind = 0, count = 0;
    while (cursor.at < cursor.end) {
        Py_ssize_t found = skip_command(&cursor);
        if (found == 0 || (count && found != kind) || count == MOST_COUNTED)
            return 0;
        kind = found;
        count++;
    }
    return kind == 3 ? count : -count;
}

static PyObject *count_untrusted(PyObject *Py_UNUSED(module), PyObject *data)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "count_untrusted(data)");
    const char *start = PyBytes_AS_STRING(data);
    return PyLong_FromSsize_t(count_plain((Cursor){start, start + PyBytes_GET_SIZE(data)}));
}

/* Read from a socket; a new reference to (descriptor, events, bytes or None, how many commands). */
static PyObject *receive_one(const struct epoll_event *ready, Py_ssize_t *room)
{
    static char buffer[RECEIVE_BYTES]; /* of who has the interpreter */
    int fileno = ready->data.fd;
    ssize_t length = -1;
    if (ready->events == EPOLLIN && *room > 0)
        length = recv(fileno, buffer, sizeof buffer, MSG_DONTWAIT);
    if (length <= 0)
        return Py_BuildValue("iIOi", fileno, (unsigned)ready->events, Py_None, 0);
    /* First of all: what collects garbage may let others run, and they read into the buffer too. */
    PyObject *data = PyBytes_FromStringAndSize(buffer, length);
    if (data == NULL)
        return NULL;
    *room -= length;
    const char *start = PyBytes_AS_STRING(data);
    return Py_BuildValue("iINn", fileno, (unsigned)ready->events, data, count_plain((Cursor){start, start + length}));
}

static PyObject *receive_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    struct epoll_event ready[MOST_READY];
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "receive_untrusted(epoll, most)");
    int epoll = PyObject_AsFileDescriptor(args[0]);
    if (epoll < 0)
        return NULL;
    long most = PyLong_AsLong(args[1]);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    int found = epoll_wait(epoll, ready, most < MOST_READY ? (int)most : MOST_READY, 0);
    if (found < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *all = PyList_New(found < 0 ? 0 : found);
    Py_ssize_t room = TURN_BYTES;
    for (int n = 0; all != NULL && n < found; n++) {
        PyObject *one = receive_one(&ready[n], &room);
        if (one == NULL)
            Py_CLEAR(all);
        else
            PyList_SET_ITEM(all, n, one);
    }
    return all;
}

/* What goes to a socket, and how much of it went. */
typedef struct {
    int fileno;
    const char *bytes;
    Py_ssize_t length, sent;
} Outgoing;

static void send_one(Outgoing *one)
{
    one->sent = 0;
    if (one->fileno < 0)
        return;
    do
        one->sent = send(one->fileno, one->bytes, one->length, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (one->sent < 0 && errno == EINTR);
    if (one->sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        one->sent = 0;
}

/* The places of what did not go whole. */
static PyObject *find_unsent(const Outgoing *all, Py_ssize_t count)
{
    PyObject *unsent = PyList_New(0);
    for (Py_ssize_t n = 0; unsent != NULL && n < count; n++) {
        if (all[n].fileno >= 0 && all[n].sent == all[n].length)
            continue;
        PyObject *one = Py_BuildValue("nn", n, all[n].sent);
        if (one == NULL || PyList_Append(unsent, one))
            Py_CLEAR(unsent);
        Py_XDECREF(one);
    }
    return unsent;
}

static PyObject *send_all(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[1]) ||
        PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1]))
        return PyErr_Format(PyExc_TypeError, "send_all(filenos, replies)");
    Py_ssize_t size = PyList_GET_SIZE(args[0]);
    PyObject *unsent = NULL;
    Outgoing *all = PyMem_New(Outgoing, size + 1);
    if (all == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t n = 0; n < size; n++) {
        PyObject *reply = PyList_GET_ITEM(args[1], n);
        all[n].fileno = (int)PyLong_AsLong(PyList_GET_ITEM(args[0], n));
        if (PyErr_Occurred() || !PyBytes_Check(reply)) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_TypeError, "a reply is bytes");
            goto done;
        }
        all[n].bytes = PyBytes_AS_STRING(reply);
        all[n].length = PyBytes_GET_SIZE(reply);
    }
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t n = 0; n < size; n++)
        send_one(&all[n]);
    Py_END_ALLOW_THREADS;
    unsent = find_unsent(all, size);
done:
    PyMem_Free(all);
    return unsent;
}

/* Step over a reply that a plain command may have; whether there is one. */
static int skip_reply(Cursor *cursor)
{
    const char *start = cursor->at, *bytes, *end;
    if (start == cursor->end)
        return 0;
    if (*start == '$') {
        if (read_bulk(cursor, &bytes) >= 0)
            return 1;
        if (cursor->end - start < 5 || memcmp(start, "$-1\r\n", 5))
            return 0;
        cursor->at = start + 5;
        return 1;
    }
    if (*start != '+' && *start != '-' && *start != '_')
        return 0;
    end = memchr(start, '\n', cursor->end - start);
    if (end == NULL || end[-1] != '\r')
        return 0;
    cursor->at = end + 1;
    return 1;
}

static PyObject *cut_replies_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyList_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "cut_replies_untrusted(replies, counts)");
    const char *start = PyBytes_AS_STRING(args[0]);
    Cursor cursor = {start, start + PyBytes_GET_SIZE(args[0])};
    PyObject *all = PyList_New(PyList_GET_SIZE(args[1]));
    for (Py_ssize_t n = 0; all != NULL && n < PyList_GET_SIZE(all); n++) {
        Py_ssize_t own = PyLong_AsSsize_t(PyList_GET_ITEM(args[1], n));
        const char *from = cursor.at;
        PyObject *one = NULL;
        while (own > 0 && skip_reply(&cursor))
            own--;
        if (own == 0)
            one = PyBytes_FromStringAndSize(from, cursor.at - from);
        if (one == NULL)
            Py_CLEAR(all);
        else
            PyList_SET_ITEM(all, n, one);
    }
    if (PyErr_Occurred())
        return NULL;
    if (all == NULL || cursor.at != cursor.end) {
        Py_XDECREF(all);
        Py_RETURN_NONE;
    }
    return all;
}

/* A key and the value that it is set to, as they lie in a payload. */
typedef struct {
    const char *key, *value;
    Py_ssize_t key_length, value_length;
} Set;

/* Step over the name of a SET or an MSET; how many keys it sets, 0 if it is anything else. */
static Py_ssize_t open_set(Cursor *cursor)
{
    Py_ssize_t count = read_header(cursor, '*');
    if (count == 3 && read_name(cursor, "set"))
        return 1;
    return count > 1 && count % 2 && read_name(cursor, "mset") ? count / 2 : 0;
}

/* Find what is set by a payload that is nothing but SETs and MSETs; how many of these commands there
 * are, 0 if there is anything else. */
static Py_ssize_t find_sets(Cursor cursor, Set *sets, Py_ssize_t *found)
{
    Py_ssize_t commands = 0;
    for (*found = 0; cursor.at < cursor.end; commands++) {
        Py_ssize_t count = open_set(&cursor);
        if (count == 0 || count > MOST_COMMANDS - *found)
            return 0;
        for (Set *set = sets + *found; set < sets + *found + count; set++)
            if ((set->key_length = read_bulk(&cursor, &set->key)) < 0 ||
                (set->value_length = read_bulk(&cursor, &set->value)) < 0)
                return 0;
        *found += count;
    }
    return commands;
}

/* A memtable (storage/tables/memtable.py), and how much there is more of what; the keys that have a
 * deadline, and those that were put of them. */
typedef struct {
    PyObject *records, *fresh, *expiring, *lasting;
    Py_ssize_t added, present, bytes;
} Memtable;

/* Note a key if it has a deadline: whoever called takes that away. */
static int note_lasting(Memtable *table, PyObject *key)
{
    int found = PyDict_GET_SIZE(table->expiring) ? PyDict_Contains(table->expiring, key) : 0;
    return found > 0 ? PyList_Append(table->lasting, key) : found;
}

/* Change a record that nobody else can see; of any other PyTuple_SetItem would change nothing, and fail. */
static int overwrite(PyObject *record, PyObject *const *fields)
{
    int failed = 0;
    for (int n = 0; n < RECORD_FIELDS && !failed; n++)
        failed = PyTuple_SetItem(record, n, Py_NewRef(fields[n]));
    return failed;
}

static int insert(PyObject *records, PyObject *key, PyObject *const *fields)
{
    PyObject *record = PyTuple_Pack(RECORD_FIELDS, fields[0], fields[1], fields[2], fields[3]);
    if (record == NULL)
        return -1;
    PyObject_GC_UnTrack(record); /* nothing in it can lead back to it */
    int failed = PyDict_SetItem(records, key, record);
    Py_DECREF(record);
    return failed;
}

/* Put a record that never expires: value, 0, revision, tag. */
static int put(Memtable *table, PyObject *key, PyObject *const *fields)
{
    PyObject *old = PyDict_GetItemWithError(table->records, key);
    int own = 0; /* whether the old one is held by the memtable alone */
    if (old == NULL) {
        if (PyErr_Occurred() || PyList_Append(table->fresh, key))
            return -1;
        table->added++;
        table->present++;
        table->bytes += PyBytes_GET_SIZE(key);
    } else if (old == Py_None) { /* deleted */
        table->present++;
    } else {
        table->bytes -= PyBytes_GET_SIZE(PyTuple_GET_ITEM(old, 0));
        own = Py_REFCNT(old) == 1;
    }
    table->bytes += PyBytes_GET_SIZE(fields[0]);
    int failed = own ? overwrite(old, fields) : insert(table->records, key, fields);
    return failed || note_lasting(table, key) ? -1 : 0;
}

#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION) && !defined(GRAALVM_PYTHON)
/* How CPython keeps the keys of a dictionary: see its Include/internal/pycore_dict.h. */
typedef struct {
    Py_ssize_t references;
    uint8_t size_bits, index_bits, kind; /* 0: keys of any kind */
    uint32_t version;
    Py_ssize_t usable, used;
    char slots[]; /* where the entries are, negative for none; and then the entries */
} Keys;

typedef struct {
    Py_hash_t hash;
    PyObject *key, *record;
} KeyEntry;

/* What is in the slot that a key has if no other key has it. */
static const KeyEntry *guess_entry(const Keys *keys, size_t slot)
{
    int32_t place = ((const int32_t *)keys->slots)[slot];
    return place < 0 ? NULL : (const KeyEntry *)(keys->slots + ((size_t)1 << keys->index_bits)) + place;
}

/* Have what is touched when records are put come into the processor's caches, for all of them at once:
 * of a large memtable each has six places anywhere in memory, and to wait for one after the other takes
 * longer than all the rest. Nothing else comes of it, so it may be of another key. But what is guessed
 * is looked into: nothing here may run code that changes the dictionary, and its keys are bytes. */
static void fetch_records(PyObject *records, PyObject *const *wanted, int count)
{
    const Keys *keys = (const Keys *)((PyDictObject *)records)->ma_keys;
    const KeyEntry *entries[PUT_AT_ONCE];
    size_t slots[PUT_AT_ONCE];
    if (keys->kind != 0 || keys->index_bits != keys->size_bits + 2) /* a small one has shorter slots */
        return;
    for (int n = 0; n < count; n++) {
        slots[n] = (size_t)PyObject_Hash(wanted[n]) & (((size_t)1 << keys->size_bits) - 1);
        __builtin_prefetch(keys->slots + sizeof(int32_t) * slots[n]);
    }
    for (int n = 0; n < count; n++)
        if ((entries[n] = guess_entry(keys, slots[n])) != NULL)
            __builtin_prefetch(entries[n]);
    for (int n = 0; n < count; n++)
        if (entries[n] != NULL) {
            __builtin_prefetch(entries[n]->key, 1);
            __builtin_prefetch(entries[n]->record, 1);
        }
    for (int n = 0; n < count; n++)
        if (entries[n] != NULL && entries[n]->record != NULL && PyTuple_CheckExact(entries[n]->record)) {
            __builtin_prefetch(PyTuple_GET_ITEM(entries[n]->record, 0), 1);
            __builtin_prefetch(PyTuple_GET_ITEM(entries[n]->record, 2), 1);
        }
}
#else
static void fetch_records(PyObject *Py_UNUSED(records), PyObject *const *Py_UNUSED(wanted), int Py_UNUSED(count))
{
}
#endif

/* Put no more than PUT_AT_ONCE. */
static int put_some(Memtable *table, const Set *sets, int count, PyObject **fields)
{
    PyObject *keys[PUT_AT_ONCE];
    int made = 0, failed = 0;
    for (; made < count && !failed; made++)
        failed = (keys[made] = PyBytes_FromStringAndSize(sets[made].key, sets[made].key_length)) == NULL;
    if (!failed)
        fetch_records(table->records, keys, count);
    for (int n = 0; n < count && !failed; n++) {
        fields[0] = PyBytes_FromStringAndSize(sets[n].value, sets[n].value_length);
        failed = fields[0] == NULL ? -1 : put(table, keys[n], fields);
        Py_XDECREF(fields[0]);
    }
    for (int n = 0; n < made; n++)
        Py_XDECREF(keys[n]);
    return failed ? -1 : 0;
}

static int put_sets(Memtable *table, const Set *sets, Py_ssize_t count, PyObject *revision, PyObject *tag)
{
    PyObject *never = PyLong_FromLong(0), *fields[RECORD_FIELDS] = {NULL, never, revision, tag};
    int failed = never == NULL ? -1 : 0;
    for (Py_ssize_t at = 0; at < count && !failed; at += PUT_AT_ONCE) {
        Py_ssize_t left = count - at;
        failed = put_some(table, sets + at, left < PUT_AT_ONCE ? (int)left : PUT_AT_ONCE, fields);
    }
    Py_XDECREF(never);
    return failed;
}

/* What an entry must be to be plain: of this kind, of no session, with none of the flags. */
typedef struct {
    PyObject *kind;
    long flags;
} Wanted;

/* Find the payload of an entry, empty if that is not plain. Returns a new reference to what holds its
 * bytes, NULL with an exception. */
static PyObject *open_entry(PyObject *entry, const Wanted *wanted, Cursor *payload)
{
    PyObject *found[4] = {NULL, NULL, NULL, NULL}, *holder = NULL;
    for (int n = 0; n < 4; n++)
        if ((found[n] = PyObject_GetAttr(entry, names[n])) == NULL)
            goto done;
    int of_session = PyObject_IsTrue(found[1]);
    long own = PyLong_AsLong(found[2]);
    if (PyErr_Occurred())
        goto done;
    holder = Py_NewRef(found[3]);
    if (of_session == 0 && found[0] == wanted->kind && !(own & wanted->flags) && PyBytes_CheckExact(holder)) {
        payload->at = PyBytes_AS_STRING(holder);
        payload->end = payload->at + PyBytes_GET_SIZE(holder);
    }
done:
    for (int n = 0; n < 4; n++)
        Py_XDECREF(found[n]);
    return holder;
}

static size_t read_word(const char *bytes)
{
    const unsigned char *p = (const unsigned char *)bytes;
    return p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
}

/* How many entries a batch has; no more than there is room for. */
static Py_ssize_t count_entries(PyObject *batch)
{
    Py_ssize_t room = (PyBytes_GET_SIZE(batch) - BATCH_HEAD_BYTES) / DESCRIPTOR_BYTES;
    if (PyBytes_GET_SIZE(batch) < BATCH_HEAD_BYTES)
        return 0;
    size_t count = read_word(PyBytes_AS_STRING(batch) + BATCH_COUNT_AT);
    return count < (size_t)room ? (Py_ssize_t)count : room;
}

/* As open_entry, of an entry as it lies in a batch. */
static PyObject *open_descriptor(PyObject *batch, Py_ssize_t place, const Wanted *wanted, Cursor *payload)
{
    static const char no_session[8];
    const char *start = PyBytes_AS_STRING(batch), *p = start + BATCH_HEAD_BYTES + DESCRIPTOR_BYTES * place;
    size_t size = read_word(p + 4), offset = read_word(p + 8), length = (size_t)PyBytes_GET_SIZE(batch);
    long kind = PyLong_AsLong(wanted->kind);
    if (kind == -1 && PyErr_Occurred())
        return NULL;
    if ((unsigned char)p[0] == kind && !((unsigned char)p[1] & wanted->flags) &&
        memcmp(p + 16, no_session, 8) == 0 && offset <= length && size <= length - offset) {
        payload->at = start + offset;
        payload->end = payload->at + size;
    }
    return Py_NewRef(batch);
}

/* Note that so many commands of an entry are done: the reply to one, so often. */
static int add_reply(PyObject *replies, PyObject *reply, Py_ssize_t count)
{
    Py_ssize_t before = PyList_GET_SIZE(replies);
    PyObject *last = before ? PyList_GET_ITEM(replies, before - 1) : reply, *own;
    if (PyBytes_GET_SIZE(last) == PyBytes_GET_SIZE(reply) * count)
        own = Py_NewRef(last); /* as most often */
    else if ((own = PySequence_Repeat(reply, count)) == NULL)
        return -1;
    int failed = PyList_Append(replies, own);
    Py_DECREF(own);
    return failed;
}

/* Apply an entry; how many keys it sets, 0 if it is not plain, -1 with an exception. */
static Py_ssize_t apply_entry(Memtable *table, Cursor payload, long long revision, PyObject *tag, PyObject *replies,
                              PyObject *reply)
{
    Set sets[MOST_COMMANDS];
    Py_ssize_t count, commands = find_sets(payload, sets, &count);
    if (commands == 0)
        return 0;
    PyObject *own = PyLong_FromLongLong(revision);
    int failed = own == NULL || put_sets(table, sets, count, own, tag) || add_reply(replies, reply, commands);
    Py_XDECREF(own);
    return failed ? -1 : count;
}

/* What it costs to apply an entry, in bytes. */
static Py_ssize_t cost_of(Cursor payload, Py_ssize_t keys)
{
    Py_ssize_t bytes = payload.end - payload.at + ENTRY_BYTES;
    return bytes < KEY_BYTES * keys ? KEY_BYTES * keys : bytes;
}

static PyObject *apply_sets(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *tag, *reply;
    Memtable table = {0};
    Wanted wanted;
    Py_ssize_t start, room;
    long long revision;
    if (!PyArg_ParseTuple(args, "OnOlLOnSO!O!O!", &entries, &start, &wanted.kind, &wanted.flags, &revision, &tag,
                          &room, &reply, &PyDict_Type, &table.records, &PyList_Type, &table.fresh, &PyDict_Type,
                          &table.expiring))
        return NULL;
    int whole = PyBytes_CheckExact(entries);
    if (!whole && !PyList_Check(entries))
        return PyErr_Format(PyExc_TypeError, "entries are a list or the bytes of a batch");
    if (start < 0)
        return PyErr_Format(PyExc_ValueError, "entries begin at 0, not %zd", start);
    PyObject *replies = PyList_New(0);
    table.lasting = PyList_New(0);
    Py_ssize_t plain = replies == NULL || table.lasting == NULL ? -1 : 1;
    for (Py_ssize_t at = start;
         plain > 0 && room > 0 && at < (whole ? count_entries(entries) : PyList_GET_SIZE(entries)); at++) {
        Cursor payload = {NULL, NULL};
        PyObject *holder = whole ? open_descriptor(entries, at, &wanted, &payload)
                                 : open_entry(PyList_GET_ITEM(entries, at), &wanted, &payload);
        plain = holder == NULL ? -1 : apply_entry(&table, payload, revision + at, tag, replies, reply);
        room -= cost_of(payload, plain);
        Py_XDECREF(holder);
    }
    if (plain < 0) {
        Py_XDECREF(replies);
        Py_XDECREF(table.lasting);
        return NULL;
    }
    return Py_BuildValue("NnnnN", replies, table.added, table.present, table.bytes, table.lasting);
}

/* What GETs are answered from. */
typedef struct {
    PyObject *now, *records, *get;
} State;

/* A new reference to the value of a key, to None if there is no such key now; NULL without an
 * exception if what is there is no record. */
static PyObject *value_of(PyObject *key, const State *state)
{
    PyObject *value = NULL, *record = PyDict_GetItemWithError(state->records, key);
    if (record != NULL)
        Py_INCREF(record);
    else if (PyErr_Occurred() || (record = PyObject_CallOneArg(state->get, key)) == NULL)
        return NULL;
    if (record == Py_None)
        return record;
    if (PyTuple_CheckExact(record) && PyTuple_GET_SIZE(record) == RECORD_FIELDS &&
        PyBytes_CheckExact(PyTuple_GET_ITEM(record, 0))) {
        PyObject *until = PyTuple_GET_ITEM(record, 1);
        int gone = PyObject_IsTrue(until);
        if (gone > 0)
            gone = PyObject_RichCompareBool(until, state->now, Py_LE);
        if (gone >= 0)
            value = Py_NewRef(gone ? Py_None : PyTuple_GET_ITEM(record, 0));
    }
    Py_DECREF(record);
    return value;
}

/* Take the values that the GETs of a payload ask for, as long as there is room for the reply to more
 * than one; whether that was all. Nothing is looked up if there is anything else in the payload. */
static int take_values(Cursor cursor, Py_ssize_t room, const State *state, PyObject **values, Py_ssize_t *count)
{
    const char *bytes;
    Py_ssize_t commands = -count_plain(cursor);
    while (*count < commands) {
        Py_ssize_t length = 0;
        if (read_header(&cursor, '*') != 2 || !read_name(&cursor, "get") || (length = read_bulk(&cursor, &bytes)) < 0)
            return 0;
        PyObject *key = PyBytes_FromStringAndSize(bytes, length);
        PyObject *value = key == NULL ? NULL : value_of(key, state);
        Py_XDECREF(key);
        if (value == NULL)
            return 0;
        values[(*count)++] = value;
        room -= HEAD_BYTES + (value == Py_None ? 0 : PyBytes_GET_SIZE(value));
        if (room < 0 && commands > 1)
            return 0;
    }
    return commands > 0;
}

static PyObject *write_values(PyObject *const *values, Py_ssize_t count, PyObject *null)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t n = 0; n < count; n++)
        size += values[n] == Py_None ? PyBytes_GET_SIZE(null) : PyBytes_GET_SIZE(values[n]) + HEAD_BYTES;
    PyObject *reply = PyBytes_FromStringAndSize(NULL, size);
    if (reply == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(reply);
    for (Py_ssize_t n = 0; n < count; n++) {
        if (values[n] == Py_None) {
            memcpy(at, PyBytes_AS_STRING(null), PyBytes_GET_SIZE(null));
            at += PyBytes_GET_SIZE(null);
            continue;
        }
        Py_ssize_t length = PyBytes_GET_SIZE(values[n]);
        at += sprintf(at, "$%zd\r\n", length);
        memcpy(at, PyBytes_AS_STRING(values[n]), length);
        memcpy(at + length, "\r\n", 2);
        at += length + 2;
    }
    _PyBytes_Resize(&reply, at - PyBytes_AS_STRING(reply));
    return reply;
}

static PyObject *answer_gets(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *values[MOST_COUNTED], *reply = NULL;
    if (count != 6 || !PyBytes_CheckExact(args[0]) || !PyBytes_CheckExact(args[2]) || !PyDict_CheckExact(args[4]))
        return PyErr_Format(PyExc_TypeError, "answer_gets(payload, room, null, now, records, get)");
    Py_ssize_t found = 0, room = PyLong_AsSsize_t(args[1]);
    if (room == -1 && PyErr_Occurred())
        return NULL;
    const char *start = PyBytes_AS_STRING(args[0]);
    Cursor cursor = {start, start + PyBytes_GET_SIZE(args[0])};
    if (take_values(cursor, room, &(State){args[3], args[4], args[5]}, values, &found))
        reply = write_values(values, found, args[2]);
    else if (!PyErr_Occurred())
        reply = Py_NewRef(Py_None);
    while (found > 0)
        Py_DECREF(values[--found]);
    return reply;
}

static PyMethodDef methods[] = {
    {"count_untrusted", count_untrusted, METH_O, "count_untrusted(data)\n--\n\nSee plain.py."},
    {"answer_gets_2", (PyCFunction)(void (*)(void))answer_gets, METH_FASTCALL,
     "answer_gets_2(payload, room, null, now, records, get)\n--\n\nSee plain.py."},
    {"receive_untrusted", (PyCFunction)(void (*)(void))receive_untrusted, METH_FASTCALL,
     "receive_untrusted(epoll, most)\n--\n\nSee plain.py."},
    {"send_all", (PyCFunction)(void (*)(void))send_all, METH_FASTCALL,
     "send_all(filenos, replies)\n--\n\nSee plain.py."},
    {"cut_replies_untrusted", (PyCFunction)(void (*)(void))cut_replies_untrusted, METH_FASTCALL,
     "cut_replies_untrusted(replies, counts)\n--\n\nSee plain.py."},
    {"split_untrusted", (PyCFunction)(void (*)(void))split_untrusted, METH_FASTCALL,
     "split_untrusted(data, most)\n--\n\nSee plain.py."},
    {"apply_sets_3", apply_sets, METH_VARARGS,
     "apply_sets_3(entries, start, kind, flags, revision, tag, room, reply, records, fresh, expiring)\n--\n\nSee plain.py."},
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
