/*
 * The protocol of one agent run, for the model checker Spin. README.md beside this file says what is
 * modelled, what is left out and why, and how to run it.
 *
 * One run, whose agent does three things: a read, one write, the end. An atomic block is one
 * transaction that holds the row's lock. Between two of them any other process may act, so a worker
 * that is paused (a zombie) is one that is not scheduled for a while; it needs no rule of its own.
 *
 * -DBUG_...        puts a mistake in, see README.md
 * -DONLY=n         looks at one promise only (the numbers below)
 * -DIDEMPOTENT     the write is declared idempotent
 * -DDESTINATION    the write's destination can be asked whether it happened; -DFINAL: and its 'no'
 *                  is final, it refuses the former attempts from then on
 * -DCALM           at some moment all trouble ends, for the question whether the run then ends, too
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef REAPERS
#define REAPERS 2
#endif
#ifndef REQUEUES
#define REQUEUES 1      /* MAX_REQUEUES */
#endif
#ifndef VERDICTS
#define VERDICTS 2      /* how often a person takes the run out of FAILED */
#endif
#ifndef GIVE_BACKS
#define GIVE_BACKS 1    /* how often a worker is asked to stop between two steps */
#endif
#define ATTEMPTS 6      /* room in the journal; the bounds above keep it from being filled */

/* The promises, by number. */
#define AT_MOST_ONCE   1  /* a write's body starts once, unless somebody said: it did not happen */
#define NOT_AGAIN      2  /* what is recorded is not executed again */
#define UNCERTAIN_SAID 3  /* a write in doubt is never shown as anything else */
#define ZOMBIE         4  /* who lost the run changes nothing in it */
#define FENCED         5  /* no body without its fence; no fence cleared without record or verdict */
#define ALONE          6  /* no two bodies at a time; 'it did not happen' waits until nobody may act */
#define INFORMED       7  /* a verdict is given on what was seen; followed, it repeats nothing */
#define ENDS           8  /* without people, a run is taken up a bounded number of times */
#define FRESH          9  /* only a stale run is reaped */
#ifndef ONLY
#define ONLY 0
#endif
#define CHECKED(promise) (ONLY == 0 || ONLY == promise)
#define PROMISE(promise, holds) assert(!CHECKED(promise) || (holds))

#ifdef IDEMPOTENT
#define EFFECT_MAY_REPEAT true
#else
#define EFFECT_MAY_REPEAT false
#endif

/* The row. */
mtype:status = { QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED }
mtype:reason = { INTERRUPTED_WRITE, RETRIES_EXHAUSTED, NOT_RETRYABLE }
mtype:status status = QUEUED
mtype:reason reason             /* of FAILED */
byte owner                      /* 0: nobody */
byte epoch
bool lease_out
byte fence                      /* pending_effect and pending_step: the attempt, 0: none */
byte retries
bool cancel_requested
bool worker_ended               /* of the last dead letter: its worker itself reported its end */

/* The journal: the read, and the attempts at the write. `recorded` is the unique recorded_key. */
mtype:state = { STARTED, RECORDED, NOT_APPLIED, UNCERTAIN }
bool read_recorded
byte attempts
mtype:state state[ATTEMPTS + 1]
bool late[ATTEMPTS + 1]         /* late evidence: it landed */
byte newest_late
byte recorded

bool message = true             /* in the broker; enqueue() sent one */

/* What really happens; no process of the protocol reads this, unless it says why. */
byte bodies                     /* begun since the last 'it did not happen' */
byte inside                     /* bodies that are being executed */
bool may_act[ATTEMPTS + 1]      /* the attempt's process may still begin, or be in, the body */
byte landings                   /* how often the write happened */
byte idle = (1 << WORKERS) - 1  /* one bit for each worker: it has no run */
bool abandoned                  /* the owner is dead, nobody renews the lease */
byte taken_up                   /* claims by machines, since a person acted or a step was recorded */
bool calm
byte verdicts_left = VERDICTS
byte give_backs_left = GIVE_BACKS

#ifdef DESTINATION
mtype:testimony = { LANDED, NOT_LANDED }
mtype:testimony testimony[ATTEMPTS + 1]
bool landed[ATTEMPTS + 1]
byte refused                    /* attempts up to this one are refused by a final destination */
#define REFUSES(a) (a <= refused)
#define LANDS(a) landed[a] = true; landings++
#else
#define REFUSES(a) false
#define LANDS(a) skip
#endif

#define SETTLED (status == COMPLETED || status == FAILED || status == CANCELLED)
#define STALE (status == RUNNING && lease_out)

/* standing_fence(): the column, or the journal as the second witness */
#ifdef BUG_NO_WITNESS
#define UNRESOLVED false
#else
#define UNRESOLVED (attempts > 0 && (state[attempts] == STARTED || state[attempts] == UNCERTAIN))
#endif
#define IN_DOUBT (!EFFECT_MAY_REPEAT && (fence || UNRESOLVED))
#define DOUBTED (fence + (fence == 0) * attempts)

/* judge_ownership(). The worst is assumed of names: all processes have the same, as after a restart. */
#define NAME 1
#ifdef BUG_NO_EPOCH
#define MINE (status == RUNNING && owner == NAME)
#else
#define MINE (status == RUNNING && owner == NAME && epoch == my_epoch)
#endif
#define AS_OWNER PROMISE(ZOMBIE, epoch == my_epoch && status == RUNNING)

/* What leaves RUNNING has no owner and no lease. */
inline move(to) {
    status = to; owner = 0; lease_out = false; abandoned = false
}

inline dead_letter(why, attempt_in_doubt, its_worker_ended) {
    if
    :: why == INTERRUPTED_WRITE && state[attempt_in_doubt] == STARTED ->
        state[attempt_in_doubt] = UNCERTAIN
    :: else
    fi;
    fence = attempt_in_doubt; reason = why; worker_ended = its_worker_ended;
    move(FAILED)
}

/* verdict.decide() and what follows from it, in its order. */
inline stop(is_permanent, its_worker_ended) {
    if
    :: IN_DOUBT -> dead_letter(INTERRUPTED_WRITE, DOUBTED, its_worker_ended)
    :: !IN_DOUBT && cancel_requested -> fence = 0; move(CANCELLED)
    :: !IN_DOUBT && !cancel_requested && is_permanent ->
        dead_letter(NOT_RETRYABLE, fence, its_worker_ended)
    :: !IN_DOUBT && !cancel_requested && !is_permanent && retries >= REQUEUES ->
        dead_letter(RETRIES_EXHAUSTED, fence, its_worker_ended)
    :: else -> retries++; fence = 0; move(QUEUED)      /* the sweep sends the message, when due */
    fi
}

inline record(attempt) {
    PROMISE(NOT_AGAIN, recorded == 0);
    recorded = attempt; state[attempt] = RECORDED; taken_up = 0
}

inline stamp() {
    attempts++; attempt = attempts; state[attempt] = STARTED; may_act[attempt] = true;
    fence = attempt; lease_out = false
}

/* The process is in the body no more, and won't begin it. */
inline leave_body() {
    if
    :: attempt && may_act[attempt] -> may_act[attempt] = false
    :: else
    fi;
    if
    :: is_inside -> is_inside = false; inside = (REFUSES(attempt) -> inside : inside - 1)
    :: else
    fi
}

/* Idle workers are all alike, so it is enough that the first of them takes the next message. */
#define MY_BIT (1 << _pid)
#define FIRST_IDLE ((idle & (MY_BIT - 1)) == 0)

/* The segment has ended: nothing of it is left in the process. */
inline rest() {
    idle = idle | MY_BIT; my_epoch = 0; attempt = 0;
    knows_read = false; knows_write = false; returned = false
}

/* Death is possible wherever this is an option. */
#define DIES atomic { !calm -> goto dead }

active [WORKERS] proctype Worker() {
    byte my_epoch, attempt;
    bool knows_read, knows_write, is_inside, returned;

end_idle:
    atomic {
        message && FIRST_IDLE ->
        if
        :: message = false
        :: !calm                                        /* delivered, and will be again */
        fi;
        if
        :: status != QUEUED -> goto end_idle            /* late, stale or a duplicate */
        :: status == QUEUED && IN_DOUBT -> stop(false, false); goto end_idle
        :: else ->
            printf("worker %d claims the run in epoch %d\n", _pid, epoch + 1);
            idle = idle & ~MY_BIT; epoch++; my_epoch = epoch; status = RUNNING; owner = NAME;
            lease_out = false; abandoned = false;
            taken_up++; PROMISE(ENDS, taken_up <= REQUEUES + 1 + GIVE_BACKS)
        fi
    }

    /* open(): the journal, and the first heartbeat */
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER;
        lease_out = false; knows_read = read_recorded; knows_write = (recorded > 0)
       }
    :: DIES
    fi;

    /* the read */
    if
    :: atomic { knows_read -> goto write }
    :: atomic { !knows_read -> PROMISE(NOT_AGAIN, !(MINE && read_recorded)) }
    :: DIES
    fi;
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER; PROMISE(NOT_AGAIN, !read_recorded);
        read_recorded = true; lease_out = false; taken_up = 0;
        if :: cancel_requested -> goto recover :: else fi
       }
    :: goto recover                                     /* it failed */
    :: DIES
    fi;

write:
    if
    :: atomic { knows_write -> goto complete }
    :: atomic { !knows_write && !MINE -> goto lost }
#ifndef BUG_STAMP_AFTER_BODY
    :: atomic {
        !knows_write && MINE -> AS_OWNER;
        if
        :: cancel_requested -> goto recover
        :: !cancel_requested && (recorded || fence || IN_DOUBT) -> goto recover
        :: !cancel_requested && !(recorded || fence || IN_DOUBT) && newest_late &&
           !EFFECT_MAY_REPEAT ->
            dead_letter(INTERRUPTED_WRITE, newest_late, false); goto lost
        :: else -> stamp(); printf("worker %d stamps attempt %d\n", _pid, attempt)
        fi
       }
#else
    :: !knows_write && MINE
#endif
    :: atomic {                                         /* SIGTERM: give the run back */
        !knows_write && MINE && !calm && give_backs_left > 0 -> AS_OWNER;
        give_backs_left--;
        if
        :: cancel_requested || fence || IN_DOUBT -> stop(false, false)
        :: else -> move(QUEUED); message = true
        fi;
        rest(); goto end_idle
       }
    :: DIES
    fi;

    /* between stamp and body */
    if
    :: skip
    :: atomic { !calm -> may_act[attempt] = false; goto recover }   /* it was paused for too long */
    :: DIES
    fi;
    atomic {
        printf("worker %d begins the body of attempt %d\n", _pid, attempt);
        PROMISE(FENCED, attempt > 0);
        PROMISE(NOT_AGAIN, !(MINE && recorded));
        if
        :: EFFECT_MAY_REPEAT || REFUSES(attempt)
        :: else ->
            bodies++; PROMISE(AT_MOST_ONCE, bodies <= 1);
            inside++; is_inside = true; PROMISE(ALONE, inside <= 1)
        fi
    }
    if
    :: atomic { !REFUSES(attempt) -> LANDS(attempt); PROMISE(INFORMED, landings <= 1) }
    :: goto raised
    :: DIES
    fi;
    if
    :: atomic { true -> leave_body(); returned = true }
    :: goto raised
    :: DIES
    fi;

#ifdef BUG_STAMP_AFTER_BODY
    if
    :: atomic { !MINE -> goto lost }
    :: atomic { MINE -> stamp(); may_act[attempt] = false }
    :: DIES
    fi;
#endif
#ifdef BUG_CLEAR_FIRST
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER; fence = 0; lease_out = false;
        printf("worker %d clears the fence\n", _pid)
       }
    :: DIES
    fi;
#endif
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER;
        if
        :: state[attempt] != STARTED -> goto recover
        :: else
        fi;
        record(attempt); lease_out = false;
        printf("worker %d records attempt %d\n", _pid, attempt);
        if :: fence == attempt -> fence = 0 :: else fi;
        if :: cancel_requested -> goto recover :: else fi
       }
    :: !calm -> goto recover                            /* the database refuses for too long */
    :: DIES
    fi;

complete:
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER;
        if
        :: fence || IN_DOUBT -> goto recover
        :: !(fence || IN_DOUBT) && cancel_requested -> move(CANCELLED)
        :: else -> move(COMPLETED); printf("worker %d completes the run\n", _pid)
        fi;
        rest(); goto end_idle
       }
    :: goto recover                                     /* the agent fails behind its last step */
    :: DIES
    fi;

raised:                                                 /* the body ended without saying what happened */
    atomic { leave_body() }

recover:
    if
    :: atomic { !MINE -> goto lost }
    :: atomic {
        MINE -> AS_OWNER; printf("worker %d gives the run up\n", _pid);
        if                                              /* whether a retry may cure it */
        :: true -> stop(false, true)
        :: true -> stop(true, true)
        fi
       }
    :: DIES
    fi;

lost:                                                   /* late evidence, if there is any */
    if
    :: atomic {
        if
        :: attempt && returned && state[attempt] != RECORDED ->
            late[attempt] = true;
            if :: attempt > newest_late -> newest_late = attempt :: else fi;
            printf("worker %d leaves evidence: attempt %d landed\n", _pid, attempt)
        :: else
        fi;
        rest(); goto end_idle
       }
    :: DIES
    fi;

dead:
    atomic {
        printf("worker %d dies\n", _pid);
        if :: status == RUNNING && epoch == my_epoch -> abandoned = true :: else fi;
        leave_body();
        rest(); goto end_idle
    }
}

active [REAPERS] proctype Reaper() {
#ifdef BUG_JUDGE_BEFORE_LOCK
    bool saw_fence;
#endif
end_sweep:
    do
    :: atomic {                                         /* the list is read without a lock */
        STALE;
#ifdef BUG_JUDGE_BEFORE_LOCK
        saw_fence = IN_DOUBT;
#endif
        printf("reaper %d sees a stale run\n", _pid)
       }
       atomic {                                         /* lock, then judge */
#ifdef BUG_JUDGE_BEFORE_LOCK
        if
        :: status == RUNNING ->
            PROMISE(FRESH, lease_out);
            printf("reaper %d takes the run\n", _pid);
            if
            :: saw_fence || cancel_requested || retries >= REQUEUES -> stop(false, false)
            :: else -> retries++; fence = 0; move(QUEUED)
            fi
        :: else
        fi;
        saw_fence = false
#else
        if
        :: STALE -> stop(false, false); printf("reaper %d takes the run\n", _pid)
        :: else
        fi
#endif
       }
    od
}

/* The sweep's other half, the broker, and the time. */
active proctype World() {
end_world:
    do
#ifndef BUG_NO_SWEEP
    :: atomic { status == QUEUED && !message -> message = true }
#endif
    :: atomic { !calm && message -> message = false }
    :: atomic {
        status == RUNNING && !lease_out && (!calm || abandoned) -> lease_out = true;
        printf("the lease of epoch %d runs out\n", epoch)
       }
#ifdef CALM
    :: atomic { !calm -> calm = true }
#endif
    od
}

inline requeue() {
    fence = 0; reason = 0; move(QUEUED); message = true
}

inline leave_failed() {
    retries = 0; requeue()
}

inline did_not_happen(attempt_in_doubt) {
    state[attempt_in_doubt] = NOT_APPLIED; bodies = 0
}

#define FAILED_IN_DOUBT (status == FAILED && IN_DOUBT)
#define AS_SEEN (seen_attempt == DOUBTED && seen_epoch == epoch && seen_late == late[seen_attempt])

/*
 * former_worker_may_act(): the worker reported its end, or time enough has passed. That the time is
 * enough is assumed, so the model looks at what really is.
 */
#ifdef BUG_IMPATIENT
#define WORKER_IS_GONE(a) true
#else
#define WORKER_IS_GONE(a) (worker_ended || !may_act[a])
#endif

#ifdef DESTINATION
/* This person believes what the destination and the evidence say, and waits for it. */
#define SAYS_HAPPENED(a) (late[a] || testimony[a] == LANDED)
#define SAYS_DID_NOT_HAPPEN(a) (!late[a] && testimony[a] == NOT_LANDED)
#else
#define SAYS_HAPPENED(a) true
#define SAYS_DID_NOT_HAPPEN(a) true
#endif

active proctype Person() {
    byte seen_epoch, seen_attempt;
    bool seen_late;

end_person:
    do
    :: atomic {
        !calm && !SETTLED && !cancel_requested ->
        if
        :: status == RUNNING && (fence || IN_DOUBT) -> cancel_requested = true
        :: status != RUNNING && IN_DOUBT -> stop(false, false)
        :: else -> cancel_requested = true; fence = 0; move(CANCELLED)
        fi;
        printf("a person cancels\n")
       }
    :: atomic {
        !calm && status == FAILED && !IN_DOUBT && verdicts_left > 0 ->
        verdicts_left--; taken_up = 0; leave_failed(); printf("a person has the run retried\n")
       }
    :: atomic {                                         /* looks at a write in doubt ... */
        !calm && FAILED_IN_DOUBT && verdicts_left > 0 ->
        seen_epoch = epoch; seen_attempt = DOUBTED; seen_late = late[seen_attempt];
        printf("a person looks at attempt %d\n", seen_attempt)
       }
       atomic {                                         /* ... and says what happened, or nothing */
        if
#ifdef BUG_NO_DIGEST
        :: FAILED_IN_DOUBT && SAYS_HAPPENED(DOUBTED) ->
#else
        :: FAILED_IN_DOUBT && AS_SEEN && SAYS_HAPPENED(seen_attempt) ->
#endif
            printf("a person says: it happened\n");
            record(DOUBTED); verdicts_left--; leave_failed()
#ifdef BUG_NO_DIGEST
        :: FAILED_IN_DOUBT && SAYS_DID_NOT_HAPPEN(DOUBTED) && WORKER_IS_GONE(DOUBTED) ->
#else
        :: FAILED_IN_DOUBT && AS_SEEN && SAYS_DID_NOT_HAPPEN(seen_attempt) &&
           WORKER_IS_GONE(seen_attempt) ->
#endif
            printf("a person says: it did not happen\n");
            PROMISE(ALONE, !may_act[DOUBTED]);
            PROMISE(INFORMED, AS_SEEN);
            did_not_happen(DOUBTED); verdicts_left--; taken_up = 0; leave_failed()
        :: true
        fi;
        seen_epoch = 0; seen_attempt = 0; seen_late = false
       }
    od
}

#ifdef DESTINATION
#ifndef ASKINGS
#define ASKINGS 3
#endif
#ifndef VERIFIERS
#define VERIFIERS 1
#endif
/* verify(): ask the destination, and act on what it says. */
active [VERIFIERS] proctype Verifier() {
    byte seen_epoch, seen_attempt, askings_left = ASKINGS;
    bool seen_late, seen_gone, it_landed;

end_verifier:
    do
#ifdef BUG_ASK_UNLOCKED
    :: FAILED_IN_DOUBT && reason == INTERRUPTED_WRITE && askings_left > 0 ->
       atomic {
        if
        :: !(IN_DOUBT && UNRESOLVED && testimony[DOUBTED] == 0) -> goto end_verifier
        :: else
        fi;
#else
    :: atomic {                                         /* take */
        FAILED_IN_DOUBT && reason == INTERRUPTED_WRITE && askings_left > 0 &&
        state[DOUBTED] == UNCERTAIN && testimony[DOUBTED] == 0 ->
#endif
        askings_left--;
        seen_epoch = epoch; seen_attempt = DOUBTED; seen_late = late[seen_attempt];
        seen_gone = WORKER_IS_GONE(seen_attempt)
       }
       atomic {                                         /* ask */
        it_landed = landed[seen_attempt];
#ifdef FINAL
        if
        :: !it_landed && seen_attempt > refused -> refused = seen_attempt; inside = 0
        :: else
        fi;
#endif
        printf("the destination says of attempt %d: landed %d\n", seen_attempt, it_landed)
       }
       atomic {                                         /* testimony */
        if
        :: it_landed -> testimony[seen_attempt] = LANDED
#ifdef BUG_EARLY_TESTIMONY
        :: !it_landed -> testimony[seen_attempt] = NOT_LANDED
#else
        :: !it_landed && (seen_gone || REFUSES(seen_attempt)) ->
            testimony[seen_attempt] = NOT_LANDED
        :: else                                         /* it still may: to be asked again */
#endif
        fi
       }
       atomic {                                         /* verdict */
        if
        :: FAILED_IN_DOUBT && AS_SEEN && it_landed -> record(DOUBTED); requeue()
#ifdef FINAL
#ifdef BUG_BUDGET_ANEW
        :: FAILED_IN_DOUBT && AS_SEEN && !it_landed ->
            did_not_happen(DOUBTED); leave_failed()
#else
        :: FAILED_IN_DOUBT && AS_SEEN && !it_landed && retries < REQUEUES ->
            did_not_happen(DOUBTED); retries++; requeue()
#endif
#endif
        :: else
        fi;
        seen_epoch = 0; seen_attempt = 0; seen_late = false; seen_gone = false; it_landed = false
       }
    od
}
#endif

/* What holds at every moment. */
#define FENCE_AGREES(a) \
    ((state[a] != STARTED || (status == RUNNING && fence == a)) && \
     (state[a] != UNCERTAIN || (status == FAILED && fence == a)))

#ifndef CALM
active proctype Always() {
end_always:
    do
    :: atomic {
        CHECKED(FENCED) && !EFFECT_MAY_REPEAT &&
        !(FENCE_AGREES(1) && FENCE_AGREES(2) && FENCE_AGREES(3) && FENCE_AGREES(4)) -> assert(false)
       }
    :: atomic {
        CHECKED(FENCED) && fence && status != RUNNING && status != FAILED -> assert(false)
       }
    :: atomic {
        CHECKED(UNCERTAIN_SAID) && bodies && !recorded &&
        !(fence && (status == RUNNING || (status == FAILED && reason == INTERRUPTED_WRITE))) ->
        assert(false)
       }
    od
}
#else
ltl ends { [] (calm -> <> SETTLED) }
#endif
