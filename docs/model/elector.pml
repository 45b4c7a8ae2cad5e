/* The elector of quorate, for SPIN: make spin.
 *
 * A few members, a few terms, a log with at most one entry for each term. What is sent is kept in
 * tables, and may be heard at any time, any number of times, in any order, or never. A member may
 * fall back to its canvass at any time: that is a timeout, or a crash that leaves what is durable,
 * which is the promise, the vote and the log. Members scout whenever they like.
 *
 * Checked in every state: one leader for each term; a leader has all that was committed in older
 * terms; what is committed by two leaders does not part. With STEADY the first two members are a
 * leader and a follower that hear each other all the time: then no term may be raised by anybody.
 *
 * With NO_SCOUTING members stand at once, which STEADY shows to be wrong; with FORGETFUL a crash
 * loses promise and vote, and there are two leaders. T is at most 3, N at most 4.
 *
 * All members are one set of voters, unless SET1 and SET2 are given, as bits: then a decision needs a
 * majority of each, as while the voters change. Members in ALONE count by SET1 alone, since they do
 * not know yet of the change, or know already that it is over. With UNION a majority of the union is
 * enough for all other members, and there are two leaders.
 *
 * A log is the set of the terms of its entries, as bits: terms only grow, so that is their order.
 */

#ifndef N
#define N 3
#endif
#ifndef T
#define T 2
#endif
#define NOBODY N
#ifndef SET1
#define SET1 ((1 << N) - 1)
#endif
#ifndef SET2
#define SET2 SET1
#endif
#ifndef ALONE
#define ALONE 0
#endif

mtype = { canvass, scouting, ballot, voted, leading, following };

typedef Member {
    mtype role;
    byte term;      /* that it scouts, stands, leads or follows in */
    byte yes;       /* who would vote for it: bits, of one round of scouting */
    byte promised;  /* durable */
    byte vote;      /* durable: for whom in that term */
    byte log        /* durable */
};

typedef Term {
    byte log[N];    /* that a candidate has told in its request for votes */
    byte votes[N];  /* for each candidate: by whom, bits */
    byte asked;     /* who has stood, bits */
    byte leader;    /* who has won */
    byte base;      /* the log with which it won */
    bool wrote;     /* it has written the entry of the term */
    byte hasbase;   /* who has reported that log, bits */
    byte hasentry   /* who has reported the entry, bits */
};

Member m[N];
Term t[T + 1];
byte committed;

/* Whether these members, bits, are a majority of a set, and whether they are enough for a member. */
#define BITS(set) (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1) + (((set) >> 3) & 1))
#define MAJORITY(bits, set) (2 * BITS((bits) & (set)) > BITS(set))
#ifdef UNION
#define JOINT(bits) MAJORITY(bits, SET1 | SET2)
#else
#define JOINT(bits) (MAJORITY(bits, SET1) && MAJORITY(bits, SET2))
#endif
#define ENOUGH(i, bits) ((((ALONE) >> (i)) & 1) -> MAJORITY(bits, SET1) : JOINT(bits))

/* Where a log ends, as a number to compare: first its last term, then its length. */
inline logend(set, result) {
    end_i = 1; end_last = 0; end_length = 0;
    do
    :: end_i <= T ->
        if
        :: (set >> end_i) & 1 -> end_last = end_i; end_length++
        :: else
        fi;
        end_i++
    :: else -> break
    od;
    result = end_last * (T + 1) + end_length;
    end_i = 0; end_last = 0; end_length = 0
}

/* Whether the longer of two logs begins with the shorter: equal up to the lower of the last terms. */
#define UPTO(log) ((log) >= 8 -> 15 : ((log) >= 4 -> 7 : ((log) >= 2 -> 3 : 0)))
#define LOWER(a, b) ((a) < (b) -> (a) : (b))
#define AGREE(a, b) (((a) & UPTO(LOWER(a, b))) == ((b) & UPTO(LOWER(a, b))))

#define WITHOUT_LEADER(i) (m[i].role != leading && m[i].role != following)
#define BACK(i) m[i].role = canvass; m[i].term = 0; m[i].yes = 0
#ifdef NO_SCOUTING
#define SUPPORTED(i) true
#else
#define SUPPORTED(i) ENOUGH(i, m[i].yes)
#endif
#define PROMISE(i, newterm, whom) m[i].promised = newterm; m[i].vote = whom

#ifdef STEADY
#define MAY_FAIL(i) (i > 1)
#define CHECK_STEADY assert(m[0].promised == 1 && m[1].promised == 1 && m[2].promised <= 1)
#else
#define MAY_FAIL(i) true
#define CHECK_STEADY skip
#endif

proctype member(byte i) {
    byte end_i, end_last, end_length, mine, theirs, c, e;
    do
    /* a timeout, or a crash */
    :: d_step { m[i].role != canvass && MAY_FAIL(i) ->
        BACK(i);
#ifdef FORGETFUL
        m[i].promised = 0; m[i].vote = NOBODY
#endif
    }

    /* begin a round of scouting */
    :: d_step { m[i].role == canvass && m[i].promised < T ->
        m[i].role = scouting; m[i].term = m[i].promised + 1; m[i].yes = 1 << i }

    /* answer somebody else's scout: nothing of ours changes, but that we give way */
    :: atomic { WITHOUT_LEADER(i) && (m[i].role == canvass || m[i].role == scouting) ->
        select (c : 0 .. N - 1);
        d_step {
            if
            :: c != i && m[c].role == scouting && m[c].term > m[i].promised ->
                logend(m[i].log, mine); logend(m[c].log, theirs);
                if
                :: mine <= theirs && (m[i].role == canvass || mine < theirs || i < c) ->
                    m[c].yes = m[c].yes | (1 << i);
                    if
                    :: m[i].role == scouting -> BACK(i)
                    :: else
                    fi
                :: else
                fi
            :: else
            fi;
            c = 0; mine = 0; theirs = 0
        } }

    /* a quorum would vote for us: raise the term, and ask for votes */
    :: d_step { m[i].role == scouting && m[i].promised < m[i].term && SUPPORTED(i) ->
        PROMISE(i, m[i].term, i);
        m[i].role = ballot; m[i].yes = 0;
        t[m[i].term].asked = t[m[i].term].asked | (1 << i);
        t[m[i].term].log[i] = m[i].log;
        t[m[i].term].votes[i] = 1 << i;
        CHECK_STEADY }

    /* hear a request for a vote; who leads or follows refuses, and promises nothing */
    :: atomic { WITHOUT_LEADER(i) ->
        select (e : 1 .. T); select (c : 0 .. N - 1);
        d_step {
            if
            :: c != i && ((t[e].asked >> c) & 1) && e == m[i].promised && m[i].vote == c ->
                t[e].votes[c] = t[e].votes[c] | (1 << i)
            :: c != i && ((t[e].asked >> c) & 1) && e > m[i].promised ->
                logend(m[i].log, mine); logend(t[e].log[c], theirs);
                if
                :: mine <= theirs ->
                    PROMISE(i, e, c);
                    t[e].votes[c] = t[e].votes[c] | (1 << i);
                    BACK(i); m[i].role = voted
                :: else -> PROMISE(i, e, NOBODY); BACK(i)
                fi;
                CHECK_STEADY
            :: else
            fi;
            c = 0; e = 0; mine = 0; theirs = 0
        } }

    /* win */
    :: d_step { m[i].role == ballot && m[i].promised == m[i].term &&
            ENOUGH(i, t[m[i].term].votes[i]) ->
        assert(t[m[i].term].leader == NOBODY);
        assert(committed >= (1 << m[i].term) || (m[i].log & UPTO(committed)) == committed);
        m[i].role = leading;
        t[m[i].term].leader = i;
        t[m[i].term].base = m[i].log;
        t[m[i].term].hasbase = 1 << i }

    /* lead: once a quorum has our log write the entry of the term; once it has that, commit */
    :: d_step { m[i].role == leading && !t[m[i].term].wrote &&
            ENOUGH(i, t[m[i].term].hasbase) ->
        t[m[i].term].wrote = true;
        m[i].log = m[i].log | (1 << m[i].term);
        t[m[i].term].hasentry = 1 << i }
    :: d_step { m[i].role == leading && t[m[i].term].wrote &&
            ENOUGH(i, t[m[i].term].hasentry) ->
        assert(AGREE(m[i].log, committed));
        if
        :: m[i].log > committed -> committed = m[i].log
        :: else
        fi }

    /* hear a leader: adopt its term, durably, and its log; or step down before it */
    :: atomic { select (e : 1 .. T);
        d_step {
            if
            :: t[e].leader != NOBODY && t[e].leader != i && e >= m[i].promised ->
                assert(!(m[i].role == leading && m[i].term == e));
                if
                :: e > m[i].promised -> PROMISE(i, e, NOBODY)
                :: else
                fi;
                BACK(i); m[i].role = following; m[i].term = e;
                if
                :: t[e].wrote ->
                    m[i].log = t[e].base | (1 << e);
                    t[e].hasentry = t[e].hasentry | (1 << i);
                    t[e].hasbase = t[e].hasbase | (1 << i)
                :: !t[e].wrote ->
                    m[i].log = t[e].base;
                    t[e].hasbase = t[e].hasbase | (1 << i)
                fi;
                CHECK_STEADY
            :: else
            fi;
            e = 0
        } }
    od
}

init {
    byte i;
    d_step {
        i = 0;
        do
        :: i < N -> m[i].role = canvass; m[i].vote = NOBODY; i++
        :: else -> break
        od;
        i = 1;
        do
        :: i <= T -> t[i].leader = NOBODY; i++
        :: else -> break
        od;
#ifdef STEADY
        i = 0;
        do
        :: i < 2 -> m[i].promised = 1; m[i].vote = 0; m[i].term = 1; m[i].log = 2; i++
        :: else -> break
        od;
        m[0].role = leading; m[1].role = following;
        t[1].leader = 0; t[1].wrote = true; t[1].asked = 1; t[1].votes[0] = 3;
        t[1].hasbase = 3; t[1].hasentry = 3; committed = 2;
#endif
        i = 0
    }
    atomic {
        do
        :: i < N -> run member(i); i++
        :: else -> break
        od
    }
}
