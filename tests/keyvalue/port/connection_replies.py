"""Commands that a connection answers by itself, and what Redis 7.0 answers, byte for byte.

Each line begins anew (RESET); a line may have several commands, with semicolons between them.
"""

CONNECTION_REPLIES: list[tuple[str, bytes]] = [
    ("CLIENT KILL ID 0", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID str", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID -1", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID 99999", b":0\r\n"),
    ("CLIENT KILL ID 9223372036854775808", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID 01", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID", b"-ERR No such client\r\n"),
    ("CLIENT KILL TYPE bad", b"-ERR Unknown client type 'bad'\r\n"),
    ("CLIENT KILL TYPE slave", b":0\r\n"),
    ("CLIENT KILL USER nobody", b"-ERR No such user 'nobody'\r\n"),
    ("CLIENT KILL USER default SKIPME foo", b"-ERR syntax error\r\n"),
    ("CLIENT KILL SKIPME maybe ID 77777", b"-ERR syntax error\r\n"),
    ("CLIENT KILL SKIPME yes", b":0\r\n"),
    ("CLIENT KILL FOO bar", b"-ERR syntax error\r\n"),
    ("CLIENT KILL ID 77777 ADDR", b"-ERR syntax error\r\n"),
    ("CLIENT KILL ID str ID 77777", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL ID 0 FOO bar", b"-ERR client-id should be greater than 0\r\n"),
    ("CLIENT KILL FOO bar ID 0", b"-ERR syntax error\r\n"),
    ("CLIENT UNBLOCK 1 foo", b"-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n"),
    ("CLIENT UNBLOCK x foo", b"-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n"),
    ("CLIENT UNBLOCK x", b"-ERR value is not an integer or out of range\r\n"),
    ("CLIENT UNBLOCK 1 error", b":0\r\n"),
    ("CLIENT UNBLOCK 1 TIMEOUT", b":0\r\n"),
    ("CLIENT UNBLOCK -1", b":0\r\n"),
    ("CLIENT UNBLOCK 9223372036854775808", b"-ERR value is not an integer or out of range\r\n"),
    (
        "CLIENT UNBLOCK 1 error x",
        b"-ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.\r\n",
    ),
    ("CLIENT LIST ID x", b"-ERR Invalid client ID\r\n"),
    ("CLIENT LIST ID -1", b"$0\r\n\r\n"),
    ("CLIENT LIST ID 777777 777778", b"$0\r\n\r\n"),
    ("CLIENT LIST TYPE bad", b"-ERR Unknown client type 'bad'\r\n"),
    ("CLIENT LIST TYPE", b"-ERR syntax error\r\n"),
    ("CLIENT LIST TYPE master", b"$0\r\n\r\n"),
    ("CLIENT LIST TYPE normal x", b"-ERR syntax error\r\n"),
    ("CLIENT LIST ID", b"-ERR syntax error\r\n"),
    ("CLIENT LIST FOO x", b"-ERR syntax error\r\n"),
    ("CLIENT REPLY foo", b"-ERR syntax error\r\n"),
    ("CLIENT REPLY on", b"+OK\r\n"),
    ("CLIENT REPLY OFF ; PING ; CLIENT REPLY ON", b"+OK\r\n"),
    ("CLIENT REPLY SKIP ; PING ; PING", b"+PONG\r\n"),
    ("CLIENT REPLY SKIP ; CLIENT REPLY ON ; PING", b"+OK\r\n+PONG\r\n"),
    ("CLIENT REPLY SKIP ; CLIENT REPLY SKIP ; PING ; PING", b"+PONG\r\n"),
    ("CLIENT REPLY OFF ; CLIENT REPLY SKIP ; PING ; CLIENT REPLY ON", b"+OK\r\n"),
    ("CLIENT REPLY OFF ; GET ; NOSUCH ; CLIENT REPLY ON ; PING", b"+OK\r\n+PONG\r\n"),
    ("CLIENT REPLY SKIP ; SET a 1 ; GET a", b"$1\r\n1\r\n"),
    ("CLIENT REPLY OFF ; MULTI ; SET a 1 ; EXEC ; CLIENT REPLY ON", b"+OK\r\n"),
    ("CLIENT REPLY SKIP ; MULTI ; SET a 2 ; EXEC", b"+QUEUED\r\n*1\r\n+OK\r\n"),
    ("CLIENT REPLY OFF ; RESET ; PING", b"+RESET\r\n+PONG\r\n"),
    ("CLIENT TRACKING foo", b"-ERR syntax error\r\n"),
    ("CLIENT TRACKING off", b"+OK\r\n"),
    ("CLIENT NO-EVICT foo", b"-ERR syntax error\r\n"),
    ("COMMAND LIST FILTERBY PATTERN client|k*", b"*1\r\n$11\r\nclient|kill\r\n"),
    ("COMMAND LIST FILTERBY PATTERN xxx*", b"*0\r\n"),
    ("COMMAND LIST FILTERBY FOO x", b"-ERR syntax error\r\n"),
    ("COMMAND LIST FILTERBY", b"-ERR syntax error\r\n"),
    ("COMMAND LIST FILTERBY PATTERN a b", b"-ERR syntax error\r\n"),
    ("COMMAND INFO get|key", b"*1\r\n$-1\r\n"),
    ("COMMAND INFO nosuch", b"*1\r\n$-1\r\n"),
    ("COMMAND INFO client|nosuch", b"*1\r\n$-1\r\n"),
    ("COMMAND INFO nosuch get|key", b"*2\r\n$-1\r\n$-1\r\n"),
    ("COMMAND INFO client|kill|x", b"*1\r\n$-1\r\n"),
    ("COMMAND INFO client|", b"*1\r\n$-1\r\n"),
    ("COMMAND INFO get|", b"*1\r\n$-1\r\n"),
    ("COMMAND DOCS nosuch", b"*0\r\n"),
    ("COMMAND DOCS get|key", b"*0\r\n"),
    ("COMMAND GETKEYS NOSUCH a", b"-ERR Invalid command specified\r\n"),
    ("COMMAND GETKEYS MSET a b c d", b"*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
    ("COMMAND GETKEYS CONFIG GET x", b"-ERR The command has no key arguments\r\n"),
    (
        "EXEC x",
        (
            b"-EXECABORT Transaction discarded because of: wrong number of "
            b"arguments for 'exec' command\r\n"
        ),
    ),
    (
        "MULTI ; EXEC x",
        (
            b"+OK\r\n"
            b"-EXECABORT Transaction discarded because of: wrong number of "
            b"arguments for 'exec' command\r\n"
        ),
    ),
    (
        "MULTI ; SET a 1 ; EXEC x ; EXEC",
        (
            b"+OK\r\n"
            b"+QUEUED\r\n"
            b"-EXECABORT Transaction discarded because of: wrong number of "
            b"arguments for 'exec' command\r\n"
            b"-ERR EXEC without MULTI\r\n"
        ),
    ),
    (
        "MULTI ; NOSUCH ; EXEC",
        (
            b"+OK\r\n"
            b"-ERR unknown command 'NOSUCH', with args beginning with: \r\n"
            b"-EXECABORT Transaction discarded because of previous errors.\r\n"
        ),
    ),
    ("MULTI ; WATCH a ; EXEC", b"+OK\r\n-ERR WATCH inside MULTI is not allowed\r\n*0\r\n"),
    (
        "WATCH a ; EXEC x ; SET a 1 ; MULTI ; GET a ; EXEC",
        (
            b"+OK\r\n"
            b"-EXECABORT Transaction discarded because of: wrong number of "
            b"arguments for 'exec' command\r\n"
            b"+OK\r\n"
            b"+OK\r\n"
            b"+QUEUED\r\n"
            b"*1\r\n"
            b"$1\r\n"
            b"1\r\n"
        ),
    ),
    (
        "AUTH x",
        (
            b"-ERR AUTH <password> called without any password configured for the "
            b"default user. Are you sure your configuration is correct?\r\n"
        ),
    ),
    ("AUTH default x", b"+OK\r\n"),
    ("AUTH foo x", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    ("AUTH a b c", b"-ERR syntax error\r\n"),
    ("HELLO 2 AUTH foo x", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    ("HELLO 3 AUTH", b"-ERR Syntax error in HELLO option 'AUTH'\r\n"),
    ("HELLO 2 FOO x", b"-ERR Syntax error in HELLO option 'FOO'\r\n"),
    ("CONFIG GET MAXMEMORY", b"*2\r\n$9\r\nMAXMEMORY\r\n$1\r\n0\r\n"),
    ("CONFIG GET maxmemory maxmemory", b"*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n"),
    ("CONFIG SET maxmemory 0 save", b"-ERR syntax error\r\n"),
    (
        "CONFIG SET maxmemory 0 maxmemory 0",
        (
            b"-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - "
            b"duplicate parameter\r\n"
        ),
    ),
    (
        "CONFIG SET maxmemory 0 foo bar",
        b"-ERR Unknown option or number of arguments for CONFIG SET - 'foo'\r\n",
    ),
    (
        "CONFIG SET databases 17",
        (
            b"-ERR CONFIG SET failed (possibly related to argument 'databases') - "
            b"can't set immutable config\r\n"
        ),
    ),
    ("WAIT 0 x", b"-ERR timeout is not an integer or out of range\r\n"),
    ("WAIT 0 -1", b"-ERR timeout is negative\r\n"),
    ("SELECT 99", b"-ERR DB index is out of range\r\n"),
]
