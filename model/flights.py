#!/usr/bin/env python3
"""Exhaustive model of fetches (docs/fetch.md): one key, its slot, one word on which callers wait. Memory is sequentially consistent.

Guards: P53

Every interleaving of callers (who may die at any step) and of somebody who changes the row in the database and then deletes the key is walked. In
every reachable state: what is in the slot after the delete was read after the change. At the end: every live caller has a value, and without
deaths, deletes and waits that ran out one caller has computed. Then the seeded bugs, each of which must be caught.

THE PROTOCOL

Caller: read the slot. A value: done. A flight whose holder lives: arm the word, read the slot again, and if it is the same flight sleep, unless the
  word has changed since it was armed; then from the start. Otherwise compare-and-swap the slot to a flight of one's own, with a serial that no item had:
  compute (read the row), then compare-and-swap from that very flight to the value: if that fails, the value is not stored. Then wake.
  (notake: a dead holder's flight is waited for; arm: the word is armed after the second read; late: the store does not compare; noserial: the store
  compares the holder only; first: the wake comes before the store; nowake: a void store wakes nobody, and neither does a delete.)
  One whose wait is over computes, and stores in the same flight: whoever comes first.
Wake: if the word is armed, count it up and take the mark away, and wake all who sleep. (same: the word stays the same.)
A sleeper looks now and then whether a death has ended the flight, or cost it a wake. (blind: it does not.)
Delete: compare-and-swap the slot to empty, whatever is in it. (absent: a flight stays, because the key has no value.)
Limit: a place is free if nobody holds it or its holder is dead: compare-and-swap to one's own; afterwards to none. (counter: the places are a number.)
"""
import sys

OLD, NEW = 'old', 'new'
EMPTY = ('empty',)


def first(callers):
    return {'slot': EMPTY, 'row': OLD, 'deleted': 0, 'serial': 0, 'word': 0, 'armed': 0, 'asleep': (0,) * callers, 'dead': (0,) * callers,
            'computed': 0, 'got': (None,) * callers, 'place': None}


def read(cell):
    return lambda m: (m[cell], m)


def put(cell, value):
    return lambda m: (None, {**m, cell: value})


def put_own(cell, me, value):
    return lambda m: (None, {**m, cell: m[cell][:me] + (value,) + m[cell][me + 1:]})


def swap(cell, old, new):
    return lambda m: (m[cell] == old, {**m, cell: new} if m[cell] == old else m)


def begin(old, me):
    """A flight with the next serial, in the place of what was read; its serial, or None."""
    def step(m):
        if m['slot'] != old:
            return None, m
        serial = m['serial'] + 1
        return serial, {**m, 'slot': ('flight', me, serial), 'serial': serial}
    return step


def compute(m):
    return m['row'], {**m, 'computed': m['computed'] + 1}


def arm(m):
    return m['word'], {**m, 'armed': 1}


def doze(me, word):
    """Falls asleep if the word is as it was when it was armed."""
    return lambda m: (None, {**m, 'asleep': m['asleep'][:me] + (int(m['word'] == word and m['armed'] == 1),) + m['asleep'][me + 1:]})


def awake(me, bug):
    """Possible as soon as the caller was woken, or looks after a death: a holder may also have died before its wake."""
    def step(m):
        slot = m['slot']
        is_ended = slot[0] != 'flight' or m['dead'][slot[1]]
        if m['asleep'][me] and not (is_ended and any(m['dead']) and bug != 'blind'):
            return None
        return None, {**m, 'asleep': m['asleep'][:me] + (0,) + m['asleep'][me + 1:]}
    return step


def wake(bug):
    def step(m):
        if not m['armed']:
            return None, m
        return None, {**m, 'word': m['word'] + (bug != 'same'), 'armed': 0, 'asleep': (0,) * len(m['asleep'])}
    return step


def store(flight, value, bug):
    def step(m):
        now = m['slot']
        fits = {'late': True, 'noserial': now[0] == 'flight' and now[1] == flight[1]}.get(bug, now == flight)
        return fits, {**m, 'slot': ('value', value)} if fits else m
    return step


def end(flight, me, bug):
    value = yield compute
    if bug == 'first':
        yield wake(bug)
    stored = yield store(flight, value, bug)
    if bug != 'first' and (stored or bug != 'nowake'):
        yield wake(bug)
    yield put_own('got', me, value)


def caller(me, bug, patience, rounds=1):
    """patience: how often it waits before it computes; rounds: how many fetches it makes."""
    for _ in range(rounds):
        waited = 0
        while True:
            slot = yield read('slot')
            if slot[0] == 'value':
                yield put_own('got', me, slot[1])
                break
            if slot[0] == 'flight':
                is_dead = yield lambda m, slot=slot: (m['dead'][slot[1]], m)
                if not is_dead or bug == 'notake':
                    if waited == patience:
                        yield from end(slot, me, bug)
                        break
                    waited += 1
                    if bug == 'arm':
                        again = yield read('slot')
                        word = yield arm
                    else:
                        word = yield arm
                        again = yield read('slot')
                    if again == slot:
                        yield doze(me, word)
                        yield awake(me, bug)
                    continue
            serial = yield begin(slot, me)
            if serial is not None:
                yield from end(('flight', me, serial), me, bug)
                break


def updater(bug):
    yield put('row', NEW)
    while True:
        slot = yield read('slot')
        if slot == EMPTY or bug == 'absent' and slot[0] == 'flight':
            break
        gone = yield swap('slot', slot, EMPTY)
        if gone:
            if bug != 'nowake':
                yield wake(bug)
            break
    yield put('deleted', 1)


def guest(me, bug):
    """One who computes under a limit of one."""
    while True:
        place = yield read('place')
        if bug == 'counter':
            if place:
                continue
            taken = yield swap('place', place, 1)
        else:
            is_free = yield lambda m, place=place: (place is None or m['dead'][place], m)
            if not is_free:
                # It waits for the next look.
                yield lambda m, place=place: None if m['place'] == place and not m['dead'][place] else (None, m)
                continue
            taken = yield swap('place', place, me)
        if taken:
            break
    yield put_own('got', me, 'place')
    yield put('place', None) if bug == 'counter' else swap('place', me, None)


def next_step(make, results):
    """The next step of a thread that has had these results; None at its end."""
    thread = make()
    try:
        step = next(thread)
        for result in results:
            step = thread.send(result)
        return step
    except StopIteration:
        return None


def wrong_in(m):
    return m['deleted'] and m['slot'] == ('value', OLD) and 'what was read before the change is there after the delete'


def wrong_at_end(m, runs, made, callers, counts):
    for me in range(callers):
        if not m['dead'][me] and next_step(made[me], runs[me]) is not None:
            return 'caller %d waits for ever' % me
    if counts and not any(m['dead']) and m['computed'] != 1:
        return '%d have computed' % m['computed']
    return None


def explore(made, callers, deaths, counts):
    """States walked; what is wrong, or None."""
    todo, seen = [(first(callers), ((),) * len(made))], set()
    while todo:
        m, runs = todo.pop()
        k = (tuple(sorted(m.items(), key=lambda item: item[0])), runs)
        if k in seen:
            continue
        seen.add(k)
        wrong = wrong_in(m)
        if wrong:
            return len(seen), wrong
        ended = True
        for i, make in enumerate(made):
            if i < callers and m['dead'][i]:
                continue
            # A turn that changes nothing but the thread's own knowledge may be taken without end: so many are enough.
            step = next_step(make, runs[i]) if len(runs[i]) < 40 else None
            if step is None:
                continue
            done = step(m)
            if done is not None:
                ended = False
                result, after = done
                todo.append((after, runs[:i] + (runs[i] + (result,),) + runs[i + 1:]))
            if i < callers and sum(m['dead']) < deaths and runs[i]:
                todo.append((put_own('dead', i, 1)(m)[1], runs))
        if ended:
            wrong = wrong_at_end(m, runs, made, callers, counts)
            if wrong:
                return len(seen), wrong
    return len(seen), None


def scenarios(bug):
    """What, callers, their threads, deaths, whether one computes."""
    wait, rush = 9, 0
    two = [lambda: caller(0, bug, wait), lambda: caller(1, bug, wait)]
    three = two + [lambda: caller(2, bug, wait)]
    change = [lambda: updater(bug)]
    return [
        ('two callers', 2, two, 0, True),
        ('two callers, one may die', 2, two, 1, True),
        ('three callers', 3, three, 0, True),
        ('a caller and a change', 1, two[:1] + change, 0, False),
        ('two callers and a change', 2, two + change, 0, False),
        ('two callers, of whom one may die, and a change', 2, two + change, 1, False),
        ('one waits not at all, and a change', 2, [lambda: caller(0, bug, wait, 2), lambda: caller(1, bug, rush)] + change, 0, False),
        ('two under a limit of one, one may die', 2, [lambda: guest(0, bug), lambda: guest(1, bug)], 1, False),
    ]


BUGS = [('notake', 'the flight of a dead holder is waited for'), ('arm', 'the word is armed after the second look'),
        ('late', 'the store does not compare'), ('noserial', 'the store compares the holder only'), ('first', 'the wake comes before the store'),
        ('nowake', 'a void store and a delete wake nobody'), ('same', 'the word stays the same at a wake'), ('blind', 'nobody looks for deaths'),
        ('absent', 'a delete leaves a flight'), ('counter', 'places are a number')]


def main():
    passed = failed = 0
    for what, callers, made, deaths, counts in scenarios(None):
        states, wrong = explore(made, callers, deaths, counts)
        print('%s  %8d states  %s%s' % ('FAIL' if wrong else 'ok  ', states, what, ': ' + wrong if wrong else ''), flush=True)
        passed, failed = passed + (not wrong), failed + bool(wrong)
    for bug, what in BUGS:
        found = None
        for scenario, callers, made, deaths, counts in scenarios(bug):
            _, wrong = explore(made, callers, deaths, counts)
            if wrong:
                found = '%s: %s' % (scenario, wrong)
                break
        print('%-10s  %-10s %s%s' % ('caught' if found else 'NOT CAUGHT', bug, what, ': ' + found if found else ''), flush=True)
        passed, failed = passed + bool(found), failed + (not found)
    print('%d passed, %d failed' % (passed, failed))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
