#!/usr/bin/env python3
"""Exhaustive model of how changes are counted for whoever keeps copies (docs/coherence.md): one key, its stripe's word, one copy. Memory is
sequentially consistent.

Guards: P42

Every interleaving of writers (who may die at any step), a copier, a mender and whoever turns the door on is walked. In every reachable state: a
copy that the kernel program would give out now (its word is the stripe's, with equal halves) has the value that the region has now. At the end,
a mender that runs alone brings the stripe to rest, unless a live writer is still in it. Then the seeded bugs, each of which must be caught.

THE PROTOCOL

Writer: flag := 1; fence; read the door word. On: acknowledge; record := the stripe; started + 1; publish; finished + 1; record := none. Off: publish. Then
  flag := 0. (late: started is counted behind the publish; early: finished before it; recordlate: the record is written behind started;
  flaglate: the door word is read before the flag is set; flagearly: the flag is cleared before the publish.)
Copier: only when the door is on and acknowledged: read the word, halves equal; read the value; write value and word as the copy. (valuefirst: the value is
  read before the word; noack: nobody waits for acknowledgements; halves: halves are not compared, neither by the copier nor by the program, which
  then looks at started only.)
Turning on: door := on; fence; every live writer has acknowledged or its flag is down; only then copies.
Mender: read the word, halves unequal; no live writer's record names the stripe; compare-and-swap the word to {started + 1, started + 1}. (ignore: records
  are not looked at; plain: a store instead of the compare-and-swap.)
"""
import sys

WRITERS = 2
FIRST = {'door': 0, 'ready': 0, 'value': 0, 'word': (0, 0), 'copy': None, 'dead': (0,) * WRITERS, 'flag': (0,) * WRITERS,
         'ack': (0,) * WRITERS, 'record': (0,) * WRITERS}


def put(cell, value):
    return lambda m: (None, {**m, cell: value})


def put_own(cell, me, value):
    return lambda m: (None, {**m, cell: m[cell][:me] + (value,) + m[cell][me + 1:]})


def get(cell):
    return lambda m: (m[cell], m)


def count(half):
    return lambda m: (None, {**m, 'word': tuple(n + (i == half) for i, n in enumerate(m['word']))})


def swap(old, new):
    return lambda m: (m['word'] == old, {**m, 'word': new} if m['word'] == old else m)


def writer(me, bug):
    door = None
    if bug == 'flaglate':
        door = yield get('door')
    yield put_own('flag', me, 1)
    if door is None:
        door = yield get('door')
    if not door:
        if bug == 'flagearly':
            yield put_own('flag', me, 0)
        yield put('value', me + 1)
    else:
        yield put_own('ack', me, 1)
        if bug != 'recordlate':
            yield put_own('record', me, 1)
        if bug == 'late':
            yield put('value', me + 1)
        yield count(0)
        if bug == 'recordlate':
            yield put_own('record', me, 1)
        if bug == 'early':
            yield count(1)
        if bug != 'late':
            yield put('value', me + 1)
        if bug != 'early':
            yield count(1)
        yield put_own('record', me, 0)
    yield put_own('flag', me, 0)


def turner(bug):
    yield put('door', 1)
    if bug != 'noack':
        for one in range(WRITERS):
            # Once is enough: one that has not acknowledged is waited for by trying again, which adds nothing to what can be reached.
            fine = yield lambda m, one=one: (m['dead'][one] or m['ack'][one] or not m['flag'][one], m)
            if not fine:
                return
    yield put('ready', 1)


def copier(bug):
    # One copy, made at any time: an older one would be over.
    ready = yield get('ready')
    if not ready:
        return
    value = None
    if bug == 'valuefirst':
        value = yield get('value')
    word = yield get('word')
    if word[0] != word[1] and bug != 'halves':
        return
    if value is None:
        value = yield get('value')
    yield put('copy', (value, word))


def mender(bug):
    word = yield get('word')
    if word[0] == word[1]:
        return
    if bug != 'ignore':
        for one in range(WRITERS):
            named = yield lambda m, one=one: (bool(m['record'][one] and not m['dead'][one]), m)
            if named:
                return
    new = (word[0] + 1, word[0] + 1)
    yield put('word', new) if bug == 'plain' else swap(word, new)


def threads(bug, on):
    out = [lambda i=i: writer(i, bug) for i in range(WRITERS)]
    return out + [lambda: copier(bug), lambda: mender(bug)] + ([] if on else [lambda: turner(bug)])


def valid(m, bug):
    if m['copy'] is None:
        return False
    word = m['copy'][1]
    if bug == 'halves':
        return word[0] == m['word'][0]
    return word == m['word'] and word[0] == word[1]


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


def explore(bug, on, deaths):
    """States walked; what is wrong, or None."""
    made = threads(bug, on)
    first = dict(FIRST)
    if on:
        first.update(door=1, ready=1)
    key = lambda m, runs: (tuple(sorted(m.items(), key=lambda item: item[0])), runs)
    todo, seen = [(first, ((),) * len(made))], set()
    while todo:
        m, runs = todo.pop()
        k = key(m, runs)
        if k in seen:
            continue
        seen.add(k)
        if valid(m, bug) and m['copy'][0] != m['value']:
            return len(seen), 'a copy says %s, the region %s' % (m['copy'][0], m['value'])
        ended = True
        for i, make in enumerate(made):
            if i < WRITERS and m['dead'][i]:
                continue
            step = next_step(make, runs[i])
            if step is None:
                continue
            ended = False
            result, after = step(m)
            todo.append((after, runs[:i] + (runs[i] + (result,),) + runs[i + 1:]))
            if i < WRITERS and sum(m['dead']) < deaths and runs[i]:
                todo.append((put_own('dead', i, 1)(m)[1], runs))
        if ended:
            rest, alone = dict(m), mender(bug)
            step = next(alone, None)
            while step is not None:
                result, rest = step(rest)
                try:
                    step = alone.send(result)
                except StopIteration:
                    break
            if rest['word'][0] != rest['word'][1]:
                return len(seen), 'the stripe never comes to rest: %s' % (rest['word'],)
    return len(seen), None


BUGS = [('late', 'started is counted behind the publish', True), ('early', 'finished is counted before the publish', True),
        ('valuefirst', 'the value is copied before the word is read', True), ('halves', 'halves are not compared', True),
        ('recordlate', 'the record is written behind started', True), ('ignore', 'a mender does not look at records', True),
        ('plain', 'a mender stores', True), ('noack', 'nobody waits for acknowledgements', False),
        ('flaglate', 'the door word is read before the flag is set', False),
        ('flagearly', 'the flag is cleared before the publish', False)]


def main():
    passed = failed = 0
    for on in (True, False):
        for deaths in (0, 1):
            states, wrong = explore(None, on, deaths)
            what = '%s, %d of the writers may die' % ('the door is on' if on else 'the door is turned on', deaths)
            print('%s  %8d states  %s%s' % ('FAIL' if wrong else 'ok  ', states, what, ': ' + wrong if wrong else ''), flush=True)
            passed, failed = passed + (not wrong), failed + bool(wrong)
    for bug, what, on in BUGS:
        _, wrong = explore(bug, on, 1)
        print('%-10s  %-10s %s%s' % ('caught' if wrong else 'NOT CAUGHT', bug, what, ': ' + wrong if wrong else ''), flush=True)
        passed, failed = passed + bool(wrong), failed + (not wrong)
    print('%d passed, %d failed' % (passed, failed))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
