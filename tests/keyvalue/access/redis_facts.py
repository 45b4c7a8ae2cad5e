"""What a Redis 7.0.15 says of the commands that we have: `COMMAND INFO`, `ACL DRYRUN`."""

CATEGORIES = """
get fast read string
set slow string write
setnx fast string write
setex slow string write
psetex slow string write
getset fast string write
getdel fast string write
getex fast string write
mget fast read string
mset slow string write
msetnx slow string write
append fast string write
strlen fast read string
getrange read slow string
substr read slow string
setrange slow string write
incr fast string write
decr fast string write
incrby fast string write
decrby fast string write
incrbyfloat fast string write
del keyspace slow write
unlink fast keyspace write
exists fast keyspace read
type fast keyspace read
expire fast keyspace write
pexpire fast keyspace write
expireat fast keyspace write
pexpireat fast keyspace write
ttl fast keyspace read
pttl fast keyspace read
expiretime fast keyspace read
pexpiretime fast keyspace read
persist fast keyspace write
rename keyspace slow write
renamenx fast keyspace write
copy keyspace slow write
touch fast keyspace read
scan keyspace read slow
keys dangerous keyspace read slow
randomkey keyspace read slow
object slow
object|encoding keyspace read slow
object|refcount keyspace read slow
object|help keyspace slow
wait connection slow
dbsize fast keyspace read
flushdb dangerous keyspace slow write
flushall dangerous keyspace slow write
command connection slow
command|count connection slow
command|docs connection slow
command|getkeys connection slow
command|info connection slow
command|list connection slow
command|help connection slow
info dangerous slow
config slow
config|get admin dangerous slow
config|set admin dangerous slow
config|resetstat admin dangerous slow
config|rewrite admin dangerous slow
config|help slow
slowlog slow
slowlog|get admin dangerous slow
slowlog|len admin dangerous slow
slowlog|reset admin dangerous slow
slowlog|help slow
latency slow
latency|doctor admin dangerous slow
latency|histogram admin dangerous slow
latency|history admin dangerous slow
latency|latest admin dangerous slow
latency|reset admin dangerous slow
latency|help slow
role admin dangerous fast
time fast
lastsave admin dangerous fast
acl slow
acl|cat slow
acl|deluser admin dangerous slow
acl|dryrun admin dangerous slow
acl|genpass slow
acl|getuser admin dangerous slow
acl|help slow
acl|list admin dangerous slow
acl|load admin dangerous slow
acl|log admin dangerous slow
acl|save admin dangerous slow
acl|setuser admin dangerous slow
acl|users admin dangerous slow
acl|whoami slow
ping connection fast
echo connection fast
hello connection fast
auth connection fast
select connection fast
quit connection fast
reset connection fast
client slow
client|id connection slow
client|info connection slow
client|list admin connection dangerous slow
client|kill admin connection dangerous slow
client|setname connection slow
client|getname connection slow
client|reply connection slow
client|no-evict admin connection dangerous slow
client|tracking connection slow
client|trackinginfo connection slow
client|getredir connection slow
client|unblock admin connection dangerous slow
client|help connection slow
multi fast transaction
exec slow transaction
discard fast transaction
watch fast transaction
unwatch fast transaction
cluster slow
cluster|slots slow
cluster|shards slow
cluster|nodes slow
cluster|info slow
cluster|myid slow
cluster|keyslot slow
cluster|countkeysinslot slow
cluster|replicas admin dangerous slow
cluster|links slow
cluster|help slow
readonly connection fast
readwrite connection fast
asking connection fast
"""
"""A command and its categories on each line."""

KEY_RIGHTS = """
get a | 1 0 1 0
set a 1 | 0 1 0 1
setnx a 1 | 0 1 0 1
setex a 1 1 | 0 1 0 1
psetex a 1 1 | 0 1 0 1
getset a 1 | 0 0 0 0
getdel a | 0 0 0 0
getex a | 0 0 0 0
mget a | 1 0 1 0
mset a 1 | 0 1 0 1
msetnx a 1 | 0 1 0 1
append a 1 | 0 1 0 1
strlen a | 1 1 1 1
getrange a 1 1 | 1 0 1 0
substr a 1 1 | 1 0 1 0
setrange a 1 1 | 0 1 0 1
incr a | 0 0 0 0
decr a | 0 0 0 0
incrby a 1 | 0 0 0 0
decrby a 1 | 0 0 0 0
incrbyfloat a 1 | 0 0 0 0
del a | 0 1 0 1
unlink a | 0 1 0 1
exists a | 1 1 1 1
type a | 1 1 1 1
expire a 1 | 0 1 0 1
pexpire a 1 | 0 1 0 1
expireat a 1 | 0 1 0 1
pexpireat a 1 | 0 1 0 1
ttl a | 1 0 1 0
pttl a | 1 0 1 0
expiretime a | 1 0 1 0
pexpiretime a | 1 0 1 0
persist a | 0 1 0 1
rename a b | 0 0 0 0
renamenx a b | 0 0 0 0
copy a b | 0 0 1 0
touch a | 1 1 1 1
object encoding a | 1 1 1 1
object refcount a | 1 1 1 1
watch a | 1 1 1 1
set a 1 GET | 0 0 0 0
set a 1 EX 5 get | 0 0 0 0
set a get | 0 1 0 1
mset a 1 b 2 | 0 1 0 0
del a b | 0 1 0 0
mget a b | 1 0 0 0
exists a b | 1 1 1 1
getex a persist | 0 0 0 0
"""
"""Command | whether it may run with %R~* / with %W~* / with %R~a %W~b / with %W~a %R~b."""
