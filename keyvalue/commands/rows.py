"""The rows of the command table, as text: one line per command.

Columns, separated by semicolons:

1. name; with a bar it is a subcommand, which follows its container
2. arity: number of arguments with the name; -n means at least n
3. kind (W write, R read, C connection) and further flags
4. first key, last key, step; 0 0 0 without keys
5. since: the first Redis version with this command
6. summary
7. tips (optional)

Numbers and flags are facts of Redis 7, because clients read them from COMMAND. ACL categories
follow from group and flags by Redis's own rule. The word `unmarked` leaves out the flag and the
category of the kind; Redis has neither for its ACL commands.
"""

# ruff: noqa: E501 - a table is read along its rows

from typing import Final

from .spec import CommandSpec, Kind

_STRING: Final = """
get ; 2 ; R fast ; 1 1 1 ; 1.0.0 ; Return the value of a key
set ; -3 ; W denyoom ; 1 1 1 ; 1.0.0 ; Set a key; optionally with an expiry, or under a condition
setnx ; 3 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Set a key that does not exist
setex ; 4 ; W denyoom ; 1 1 1 ; 2.0.0 ; Set a key with an expiry in seconds
psetex ; 4 ; W denyoom ; 1 1 1 ; 2.6.0 ; Set a key with an expiry in milliseconds
getset ; 3 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Set a key and return its old value
getdel ; 2 ; W fast ; 1 1 1 ; 6.2.0 ; Return the value of a key and delete it
getex ; -2 ; W fast ; 1 1 1 ; 6.2.0 ; Return the value of a key and change its expiry
mget ; -2 ; R fast ; 1 -1 1 ; 1.0.0 ; Return the values of several keys ; request_policy:multi_shard
mset ; -3 ; W denyoom ; 1 -1 2 ; 1.0.1 ; Set several keys at once ; request_policy:multi_shard response_policy:all_succeeded
msetnx ; -3 ; W denyoom ; 1 -1 2 ; 1.0.1 ; Set several keys at once if none of them exists ; request_policy:multi_shard response_policy:agg_min
append ; 3 ; W denyoom fast ; 1 1 1 ; 2.0.0 ; Append to the value of a key
strlen ; 2 ; R fast ; 1 1 1 ; 2.2.0 ; Return the length of a value in bytes
getrange ; 4 ; R ; 1 1 1 ; 2.4.0 ; Return a part of a value
substr ; 4 ; R ; 1 1 1 ; 1.0.0 ; Return a part of a value (the old name of GETRANGE)
setrange ; 4 ; W denyoom ; 1 1 1 ; 2.2.0 ; Overwrite a part of a value
incr ; 2 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Add one to a number
decr ; 2 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Subtract one from a number
incrby ; 3 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Add to a number
decrby ; 3 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Subtract from a number
incrbyfloat ; 3 ; W denyoom fast ; 1 1 1 ; 2.6.0 ; Add to a floating-point number
"""

_GENERIC: Final = """
del ; -2 ; W ; 1 -1 1 ; 1.0.0 ; Delete keys ; request_policy:multi_shard response_policy:agg_sum
unlink ; -2 ; W fast ; 1 -1 1 ; 4.0.0 ; Delete keys (the same as DEL here) ; request_policy:multi_shard response_policy:agg_sum
exists ; -2 ; R fast ; 1 -1 1 ; 1.0.0 ; Count the keys that exist ; request_policy:multi_shard response_policy:agg_sum
type ; 2 ; R fast ; 1 1 1 ; 1.0.0 ; Return the type of a value
expire ; -3 ; W fast ; 1 1 1 ; 1.0.0 ; Set the expiry of a key, in seconds from now
pexpire ; -3 ; W fast ; 1 1 1 ; 2.6.0 ; Set the expiry of a key, in milliseconds from now
expireat ; -3 ; W fast ; 1 1 1 ; 1.2.0 ; Set the expiry of a key, as a Unix time in seconds
pexpireat ; -3 ; W fast ; 1 1 1 ; 2.6.0 ; Set the expiry of a key, as a Unix time in milliseconds
ttl ; 2 ; R fast ; 1 1 1 ; 1.0.0 ; Return the remaining lifetime of a key, in seconds ; nondeterministic_output
pttl ; 2 ; R fast ; 1 1 1 ; 2.6.0 ; Return the remaining lifetime of a key, in milliseconds ; nondeterministic_output
expiretime ; 2 ; R fast ; 1 1 1 ; 7.0.0 ; Return when a key expires, as a Unix time in seconds
pexpiretime ; 2 ; R fast ; 1 1 1 ; 7.0.0 ; Return when a key expires, as a Unix time in milliseconds
persist ; 2 ; W fast ; 1 1 1 ; 2.2.0 ; Remove the expiry of a key
rename ; 3 ; W ; 1 2 1 ; 1.0.0 ; Rename a key; an existing key of the new name is overwritten
renamenx ; 3 ; W fast ; 1 2 1 ; 1.0.0 ; Rename a key if the new name does not exist
copy ; -3 ; W denyoom ; 1 2 1 ; 6.2.0 ; Copy a key
touch ; -2 ; R fast ; 1 -1 1 ; 3.2.1 ; Count the keys that exist (nothing is evicted here) ; request_policy:multi_shard response_policy:agg_sum
scan ; -2 ; R ; 0 0 0 ; 2.8.0 ; Iterate over the keys, some at a time ; nondeterministic_output request_policy:special
keys ; 2 ; R dangerous ; 0 0 0 ; 1.0.0 ; Return all keys that match a pattern ; request_policy:all_shards nondeterministic_output_order
randomkey ; 1 ; R ; 0 0 0 ; 1.0.0 ; Return a random key ; request_policy:all_shards nondeterministic_output
object ; -2 ; R container ; 0 0 0 ; 2.2.3 ; Inspect how a value is stored
object|encoding ; 3 ; R ; 2 2 1 ; 2.2.3 ; Return the encoding that Redis would use for a value ; nondeterministic_output
object|refcount ; 3 ; R ; 2 2 1 ; 2.2.3 ; Return 1 for a key that exists ; nondeterministic_output
object|help ; 2 ; R loading stale unmarked ; 0 0 0 ; 6.2.0 ; Describe the subcommands
wait ; 3 ; C noscript connection nokeyspace ; 0 0 0 ; 3.0.0 ; Wait until replicas hold the writes so far; return their number ; request_policy:all_shards response_policy:agg_min
"""

_SERVER: Final = """
dbsize ; 1 ; R fast keyspace ; 0 0 0 ; 1.0.0 ; Count the keys ; request_policy:all_shards response_policy:agg_sum
flushdb ; -1 ; W keyspace dangerous ; 0 0 0 ; 1.0.0 ; Delete all keys ; request_policy:all_shards response_policy:all_succeeded
flushall ; -1 ; W keyspace dangerous ; 0 0 0 ; 1.0.0 ; Delete all keys ; request_policy:all_shards response_policy:all_succeeded
command ; -1 ; C loading stale connection ; 0 0 0 ; 2.8.13 ; Describe all commands ; nondeterministic_output_order
command|count ; 2 ; C loading stale connection ; 0 0 0 ; 2.8.13 ; Count the commands
command|docs ; -2 ; C loading stale connection ; 0 0 0 ; 7.0.0 ; Document commands ; nondeterministic_output_order
command|getkeys ; -3 ; C loading stale connection ; 0 0 0 ; 2.8.13 ; Return the keys of a command
command|info ; -2 ; C loading stale connection ; 0 0 0 ; 2.8.13 ; Describe some commands ; nondeterministic_output_order
command|list ; -2 ; C loading stale connection ; 0 0 0 ; 7.0.0 ; Return the names of the commands ; nondeterministic_output_order
command|help ; 2 ; C loading stale connection ; 0 0 0 ; 5.0.0 ; Describe the subcommands
info ; -1 ; C loading stale dangerous ; 0 0 0 ; 1.0.0 ; Return information about this member ; nondeterministic_output request_policy:all_shards response_policy:special
config ; -2 ; C container ; 0 0 0 ; 2.0.0 ; Read or change the configuration
config|get ; -3 ; C admin noscript loading stale ; 0 0 0 ; 2.0.0 ; Return settings
config|set ; -4 ; C admin noscript loading stale ; 0 0 0 ; 2.0.0 ; Change settings ; request_policy:all_nodes response_policy:all_succeeded
config|resetstat ; 2 ; C admin noscript loading stale ; 0 0 0 ; 2.0.0 ; Set the statistics of this member to zero
config|rewrite ; 2 ; C admin noscript loading stale ; 0 0 0 ; 2.8.0 ; Write the configuration to its file
config|help ; 2 ; C loading stale ; 0 0 0 ; 5.0.0 ; Describe the subcommands
slowlog ; -2 ; C container ; 0 0 0 ; 2.2.12 ; Show the batches of this member that took long
slowlog|get ; -2 ; C admin loading stale ; 0 0 0 ; 2.2.12 ; Return the latest slow batches (10, or the number given, -1 for all), and where their time went ; request_policy:all_nodes nondeterministic_output
slowlog|len ; 2 ; C admin loading stale ; 0 0 0 ; 2.2.12 ; Count the slow batches ; request_policy:all_nodes response_policy:agg_sum nondeterministic_output
slowlog|reset ; 2 ; C admin loading stale ; 0 0 0 ; 2.2.12 ; Forget the slow batches ; request_policy:all_nodes response_policy:all_succeeded
slowlog|help ; 2 ; C loading stale ; 0 0 0 ; 6.2.0 ; Describe the subcommands
latency ; -2 ; C container ; 0 0 0 ; 2.8.13 ; Show how long things take on this member
latency|doctor ; 2 ; C admin noscript loading stale ; 0 0 0 ; 2.8.13 ; Return in words what takes how long, and what slow batches waited for ; nondeterministic_output request_policy:all_nodes response_policy:special
latency|histogram ; -2 ; C admin noscript loading stale ; 0 0 0 ; 7.0.0 ; Return durations of commands by kind, and of disk, commits and event loop ; nondeterministic_output request_policy:all_nodes response_policy:special
latency|history ; 3 ; C admin noscript loading stale ; 0 0 0 ; 2.8.13 ; Return when an event was slow: batch, receive, sync, quorum, apply or reply ; nondeterministic_output request_policy:all_nodes response_policy:special
latency|latest ; 2 ; C admin noscript loading stale ; 0 0 0 ; 2.8.13 ; Return the latest of each slow event ; nondeterministic_output request_policy:all_nodes response_policy:special
latency|reset ; -2 ; C admin noscript loading stale ; 0 0 0 ; 2.8.13 ; Forget slow events ; request_policy:all_nodes response_policy:all_succeeded
latency|help ; 2 ; C loading stale ; 0 0 0 ; 2.8.13 ; Describe the subcommands
role ; 1 ; C noscript loading stale fast admin_only ; 0 0 0 ; 2.8.12 ; Return the role of this member
time ; 1 ; C loading stale fast ; 0 0 0 ; 2.6.0 ; Return the time of the log ; nondeterministic_output
lastsave ; 1 ; C loading stale fast admin_only ; 0 0 0 ; 1.0.0 ; Return the time of the newest snapshot ; nondeterministic_output
quorate.status ; -1 ; C loading stale fast ; 0 0 0 ; 1.0.0 ; Return the status of this member as JSON; and rates, quantiles, and the steps of elections after as many as given
quorate.session ; -2 ; W noscript nokeyspace session ; 0 0 0 ; 1.0.0 ; OPEN [timeout-ms], KEEPALIVE id [acknowledged-sequence] or CLOSE id: sessions for QUORATE.ONCE
quorate.sessions ; 1 ; R fast nokeyspace session ; 0 0 0 ; 1.0.0 ; Count the sessions
quorate.slots ; -2 ; R container ; 0 0 0 ; 1.0.0 ; Which slots a partition owns, and the steps that move slots between partitions
quorate.slots|found ; -3 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Own slots from the beginning, and have users, unless there were some slots (slots user ...)
quorate.slots|state ; 2 ; R admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Return what is known of all slots and moves, as JSON
quorate.slots|time ; 2 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Return log time in milliseconds, by an entry of the log
quorate.slots|import ; 4 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Begin to import slots (move slots)
quorate.slots|rows ; 5 ; R admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Return some rows of slots, and where to go on (slots cursor count)
quorate.slots|changes ; 4 ; R admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Return rows of slots that have changed after a position (slots after)
quorate.slots|chunk ; -4 ; W admin noscript denyoom unmarked ; 0 0 0 ; 1.0.0 ; Put rows of slots that are importing (move number row ...)
quorate.slots|freeze ; 5 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Serve slots no more; return revision, log time and epoch (move slots target)
quorate.slots|own ; 6 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Take imported slots over; return how many keys came (move revision now-ms epoch)
quorate.slots|drop ; 3 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Decide against a move (move)
quorate.slots|thaw ; 3 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Serve frozen slots again (move)
quorate.slots|release ; 5 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Give up frozen slots, which another partition owns (move target keys)
quorate.slots|purge ; 3 ; W admin noscript unmarked ; 0 0 0 ; 1.0.0 ; Delete some rows of slots that have gone (count)
quorate.cas ; -4 ; W denyoom fast ; 1 1 1 ; 1.0.0 ; Set or delete a key (SET value [PX ms | KEEPTTL], DELETE) if it is ABSENT, or EQUALS a value; return the log position, or 0
quorate.records ; -2 ; R fast ; 1 -1 1 ; 1.0.0 ; Return value, revision and expiry of several keys
quorate.position ; 1 ; R fast nokeyspace ; 0 0 0 ; 1.0.0 ; Return the log position up to which everything is applied
quorate.watch ; -2 ; C noscript read ; 0 0 0 ; 1.0.0 ; Push the changes of the keys that begin with a prefix (prefix [PARTITION] [AFTER position])
quorate.unwatch ; 2 ; C noscript read fast ; 0 0 0 ; 1.0.0 ; End a watch by its id
quorate.expiring ; 1 ; R fast nokeyspace ; 0 0 0 ; 1.0.0 ; Count the keys that expire
quorate.once ; -4 ; C noscript nokeyspace session ; 0 0 0 ; 1.0.0 ; Execute a command of a session (session sequence command ...) exactly once
quorate.request ; 5 ; C noscript nokeyspace connection ; 0 0 0 ; 1.0.0 ; Execute the commands of a payload as one request (session sequence flags payload), exactly once within a session
quorate.users ; -1 ; R admin noscript loading stale unmarked ; 0 0 0 ; 1.0.0 ; Return the version of the users; and all users with their rules, unless that is the version given
quorate.map ; 1 ; C loading stale fast connection ; 0 0 0 ; 1.0.0 ; Return the map of the partitions, who leads them, and the number of this one, as JSON; null without partitions
quorate.control ; -2 ; C admin noscript stale cluster-admin ; 0 0 0 ; 1.0.0 ; Send an operator request to the leader (SNAPSHOT, TRANSFER member)
acl ; -2 ; C container ; 0 0 0 ; 6.0.0 ; Manage users and their rules
acl|cat ; -2 ; C noscript loading stale ; 0 0 0 ; 6.0.0 ; Return the categories, or the commands of one
acl|deluser ; -3 ; W admin noscript loading stale unmarked ; 0 0 0 ; 6.0.0 ; Delete users, and end their connections ; request_policy:all_nodes response_policy:all_succeeded
acl|dryrun ; -4 ; C admin noscript loading stale ; 0 0 0 ; 7.0.0 ; Return whether a user may run a command, without running it
acl|genpass ; -2 ; C noscript loading stale ; 0 0 0 ; 6.0.0 ; Return a random password
acl|getuser ; 3 ; R admin noscript loading stale unmarked ; 0 0 0 ; 6.0.0 ; Return the rules of a user
acl|help ; 2 ; C loading stale ; 0 0 0 ; 6.0.0 ; Describe the subcommands
acl|list ; 2 ; R admin noscript loading stale unmarked ; 0 0 0 ; 6.0.0 ; Return all users with their rules, one per line
acl|load ; 2 ; C admin noscript loading stale ; 0 0 0 ; 6.0.0 ; Accepted; users are in the log and not in a file
acl|log ; -2 ; C admin noscript loading stale ; 0 0 0 ; 6.0.0 ; Return what this member has denied lately, or forget it
acl|save ; 2 ; C admin noscript loading stale ; 0 0 0 ; 6.0.0 ; Accepted; users are in the log and not in a file
acl|setuser ; -3 ; W admin noscript loading stale unmarked ; 0 0 0 ; 6.0.0 ; Create a user, or change its rules ; request_policy:all_nodes response_policy:all_succeeded
acl|users ; 2 ; R admin noscript loading stale unmarked ; 0 0 0 ; 6.0.0 ; Return the names of all users
acl|whoami ; 2 ; C noscript loading stale ; 0 0 0 ; 6.0.0 ; Return the user of this connection
"""

_CONNECTION: Final = """
ping ; -1 ; C fast ; 0 0 0 ; 1.0.0 ; Return PONG, or the argument ; request_policy:all_shards response_policy:all_succeeded
echo ; 2 ; C loading stale fast ; 0 0 0 ; 1.0.0 ; Return the argument
hello ; -1 ; C noscript loading stale fast no_auth allow_busy ; 0 0 0 ; 6.0.0 ; Choose the protocol, authenticate and name the connection
auth ; -2 ; C noscript loading stale fast no_auth allow_busy ; 0 0 0 ; 1.0.0 ; Authenticate the connection
select ; 2 ; C loading stale fast ; 0 0 0 ; 1.0.0 ; Choose the database; there is only 0
quit ; -1 ; C noscript loading stale fast no_auth allow_busy ; 0 0 0 ; 1.0.0 ; Close the connection
reset ; 1 ; C noscript loading stale fast no_auth allow_busy ; 0 0 0 ; 6.2.0 ; Reset the connection to its initial state
client ; -2 ; C container ; 0 0 0 ; 2.4.0 ; Inspect and manage client connections
client|id ; 2 ; C noscript loading stale ; 0 0 0 ; 5.0.0 ; Return the id of the connection
client|info ; 2 ; C noscript loading stale ; 0 0 0 ; 6.2.0 ; Describe the connection ; nondeterministic_output
client|list ; -2 ; C admin noscript loading stale ; 0 0 0 ; 2.4.0 ; Describe the connections of this member ; nondeterministic_output
client|kill ; -3 ; C admin noscript loading stale ; 0 0 0 ; 2.4.0 ; Close connections
client|setname ; 3 ; C noscript loading stale ; 0 0 0 ; 2.6.9 ; Name the connection
client|getname ; 2 ; C noscript loading stale ; 0 0 0 ; 2.6.9 ; Return the name of the connection
client|setinfo ; 4 ; C noscript loading stale ; 0 0 0 ; 7.2.0 ; Record the library that the client uses
client|reply ; 3 ; C noscript loading stale ; 0 0 0 ; 3.2.0 ; Switch replies on or off
client|no-evict ; 3 ; C admin noscript loading stale ; 0 0 0 ; 7.0.0 ; Accepted; nothing is evicted here
client|no-touch ; 3 ; C noscript loading stale ; 0 0 0 ; 7.2.0 ; Accepted; nothing is evicted here
client|tracking ; -3 ; C noscript loading stale ; 0 0 0 ; 6.0.0 ; Switch the tracking of keys off; it can't be switched on
client|trackinginfo ; 2 ; C noscript loading stale ; 0 0 0 ; 6.2.0 ; Return how keys are tracked
client|getredir ; 2 ; C noscript loading stale ; 0 0 0 ; 6.0.0 ; Return where invalidations go
client|unblock ; -3 ; C admin noscript loading stale ; 0 0 0 ; 5.0.0 ; Unblock a connection; none is ever blocked
client|help ; 2 ; C loading stale ; 0 0 0 ; 5.0.0 ; Describe the subcommands
"""

_TRANSACTIONS: Final = """
multi ; 1 ; C noscript loading stale fast allow_busy ; 0 0 0 ; 1.2.0 ; Begin a transaction
exec ; 1 ; C noscript loading stale skip_slowlog ; 0 0 0 ; 1.2.0 ; Execute the queued commands as one
discard ; 1 ; C noscript loading stale fast allow_busy ; 0 0 0 ; 2.0.0 ; Discard the queued commands
watch ; -2 ; C noscript loading stale fast allow_busy ; 1 -1 1 ; 2.2.0 ; Make EXEC do nothing if one of the keys changes before it
unwatch ; 1 ; C noscript loading stale fast allow_busy ; 0 0 0 ; 2.2.0 ; Forget the watched keys
"""

_CLUSTER: Final = """
cluster ; -2 ; C container ; 0 0 0 ; 3.0.0 ; Describe the cluster
cluster|slots ; 2 ; C stale ; 0 0 0 ; 3.0.0 ; Return the members, leader first, as one range of slots ; nondeterministic_output
cluster|shards ; 2 ; C stale ; 0 0 0 ; 7.0.0 ; Return the members as one shard ; nondeterministic_output
cluster|nodes ; 2 ; C stale ; 0 0 0 ; 3.0.0 ; Return the members, one per line ; nondeterministic_output
cluster|info ; 2 ; C stale ; 0 0 0 ; 3.0.0 ; Return the state of the cluster ; nondeterministic_output
cluster|myid ; 2 ; C stale ; 0 0 0 ; 3.0.0 ; Return the id of this member
cluster|myshardid ; 2 ; C stale ; 0 0 0 ; 7.2.0 ; Return the id of the only shard
cluster|keyslot ; 3 ; C stale ; 0 0 0 ; 3.0.0 ; Return the hash slot of a key
cluster|countkeysinslot ; 3 ; C stale ; 0 0 0 ; 3.0.0 ; Count the keys of a hash slot
cluster|replicas ; 3 ; C admin stale ; 0 0 0 ; 5.0.0 ; Return the followers of a member ; nondeterministic_output
cluster|links ; 2 ; C stale ; 0 0 0 ; 7.0.0 ; Return the links between members ; nondeterministic_output
cluster|help ; 2 ; C loading stale ; 0 0 0 ; 5.0.0 ; Describe the subcommands
readonly ; 1 ; C loading stale fast connection ; 0 0 0 ; 3.0.0 ; Allow reads of this member's own, perhaps older, state
readwrite ; 1 ; C loading stale fast connection ; 0 0 0 ; 3.0.0 ; Go back to linearizable reads
asking ; 1 ; C fast connection ; 0 0 0 ; 3.0.0 ; Accepted; slots never move here
"""

_GROUPS: Final = (
    ("string", _STRING),
    ("generic", _GENERIC),
    ("server", _SERVER),
    ("connection", _CONNECTION),
    ("transactions", _TRANSACTIONS),
    ("cluster", _CLUSTER),
)
_KINDS: Final = {"W": Kind.WRITE, "R": Kind.READ, "C": Kind.CONNECTION}
_KIND_FLAG: Final = {"W": ("write",), "R": ("readonly",), "C": ()}
_NOT_FLAGS: Final = frozenset(
    (
        "keyspace",
        "dangerous",
        "connection",
        "admin_only",
        "container",
        "nokeyspace",
        "unmarked",
        "cluster-admin",
        "session",
        "read",
    )
)
_GROUP_CATEGORY: Final = {
    "string": "@string",
    "generic": "@keyspace",
    "connection": "@connection",
    "transactions": "@transaction",
}
# the order in which Redis lists them
_CATEGORIES: Final = (
    "@keyspace",
    "@read",
    "@write",
    "@string",
    "@admin",
    "@fast",
    "@slow",
    "@dangerous",
    "@connection",
    "@transaction",
    "@cluster-admin",
    "@session",
)
_NAMED: Final = frozenset(
    ("keyspace", "read", "dangerous", "connection", "cluster-admin", "session")
)


def build_rows() -> tuple[CommandSpec, ...]:
    """Build the table from the rows; subcommands go into their containers."""
    commands: dict[str, CommandSpec] = {}
    for group, text in _GROUPS:
        for line in text.strip().splitlines():
            spec = _spec(group, line)
            container, _, subcommand = spec.name.partition("|")
            if subcommand:
                commands[container].subcommands[subcommand.encode()] = spec
            else:
                commands[container] = spec
    return tuple(commands.values())


def _spec(group: str, line: str) -> CommandSpec:
    name, arity, who, keys, since, summary, *tips = (column.strip() for column in line.split(" ; "))
    kind, *words = who.split()
    container = "container" in words
    # ACL SETUSER goes through the log, and is no "write" for those who may only write keys.
    marks = () if "unmarked" in words else _KIND_FLAG[kind]
    flags = () if container else marks + tuple(w for w in words if w not in _NOT_FLAGS)
    first_key, last_key, step = map(int, keys.split())
    return CommandSpec(
        name=name,
        arity=int(arity),
        kind=_KINDS[kind],
        flags=flags,
        first_key=first_key,
        last_key=last_key,
        step=step,
        group=group,
        since=since,
        summary=summary,
        categories=("@slow",) if container else _categories(group, flags, words),
        tips=tuple(tips[0].split()) if tips else (),
    )


def _categories(group: str, flags: tuple[str, ...], words: list[str]) -> tuple[str, ...]:
    held = {"@fast" if "fast" in flags else "@slow"}
    if "nokeyspace" not in words:
        held.add(_GROUP_CATEGORY.get(group, ""))
    held.update(f"@{word}" for word in words if word in _NAMED)
    if "admin" in words or "admin_only" in words:
        held |= {"@admin", "@dangerous"}
    if flags and flags[0] in ("write", "readonly"):
        held.add("@write" if flags[0] == "write" else "@read")
    return tuple(category for category in _CATEGORIES if category in held)
