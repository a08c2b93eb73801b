#!/usr/bin/env python3
"""Exhaustive model of a TCP connection on which the kernel door answers requests (crates/keyway-xdp/src/bpf/tcp.h): a client, the program, the
server's socket and the server.

Guards: P43

A script is a list of requests; every byte of it and every byte of an answer has its place, so a byte that arrives elsewhere is seen. The client has written
all its requests from the beginning, and each end may send at any time any part of what the other has not acknowledged, an empty
segment, or a keepalive with or without a byte of garbage. With `parts`, what the client sends may also come in parts: the program sees the number and
none of the bytes, and the socket gets all of them. What was sent once may arrive at any later time, any number of times, or never: before the
program, between program and socket in both directions, and at the client. So a state has sets of segments that only grow, and a state whose sets are
contained in those of another with the same ends needs no steps of its own. Loss, reordering, duplication and retransmission are therefore unbounded; the
script is what is bounded. A window that is closed at the client is a loss.

In every reachable state: each byte that the client accepts is the one that belongs there, its end of stream too; the server receives
its requests in order, without those that were answered by the program; no request is answered before those in front of it were executed; no end accepts an
acknowledgement of what the other side does not have. From every state, with everything on its way lost and nothing lost afterwards, all
requests come to be answered by retransmissions alone, both ends then agree on their numbers, and a keepalive of either end is answered.

THE PROTOCOL

Server: execute whole requests; write their answers; word := bytes read. (early: the word is published before the answer is written; half: with a
  part of a request read.)
Program, a segment of the client: bytes of the request that was answered last never reach the socket (upward); while that answer is not acknowledged,
  they get it again (norepeat, ready: before it was written), and so does an empty segment that has a number after the request (deaf; narrow: the one
  right after it only). It goes out again in pieces of one byte (whole), each from the byte that the client acknowledges (repeatseq: from the first one, with
  that number), and the last one acknowledges the request (acking: each does). A keepalive that follows a byte of the request becomes one that the
  socket answers (keepalive). At rest, an answerable segment is answered: the word is read before the socket's numbers (late), it is what the socket
  has received (word); the segment is the next one that reaches the socket (next), and follows what it has received (gap); the client has all that was
  sent (ack), and that is all that was written (unsent); the socket is established, as seen under the lock (state). Every segment counts that is
  passed on (window: only what ends within the socket's window). Nothing is answered before the segments have arrived that were on their way when the
  connection was enrolled (soon).
Program, a segment of the socket: numbers from the splice on are those after it (edge). While the last answer is not acknowledged, a segment with
  nothing after the splice does not acknowledge the request (acked), and one from before it to after it is moved to before it (across; dropped: it is
  dropped).
Program, a segment of the client in parts: it is one that may have any length (parts: none), and nothing is answered afterwards (pieced: the next one is).
The splice is kept until it is far behind (settled: forgotten when something follows it).
Path: with `path`, a segment with more bytes of answers never reaches the client. The socket is told, with the number of the segment as the client
counts; the program translates it (quoted), or the socket would not believe it, and would send the same segment for ever.
Whether the socket learns from the answered segment what it acknowledges depends on how long ago the socket has sent: the program may do either
each time (told, untold: always, never). What the socket has not learned so, it learns from the client's acknowledgement of the answer (mute: that does not
reach it either).
"""
import sys

SERVED, HOT, SHORT, QUIET, POISON, LONG = 'server', 'hot', 'hot and short', 'noreply', 'looks hot at its end', 'server, long'
SIZES = {SERVED: (1, 1), HOT: (2, 2), SHORT: (2, 1), QUIET: (1, 0), POISON: (3, 1), LONG: (1, 2)}
FIN, GARBAGE, UNWRITTEN = -2, -1, -3
IN_PARTS, NEVER = 2, -2
LETTERS = {'s': SERVED, 'h': HOT, 'g': SHORT, 'n': QUIET, 'p': POISON, 'l': LONG}


class Wrong(Exception):
    pass


class Interned:
    """A set of segments is a number, with a bit for each."""

    def __init__(self):
        self.bit, self.items, self.lists = {}, [], {}

    def add(self, item):
        bit = self.bit.get(item)
        if bit is None:
            bit = self.bit[item] = 1 << len(self.items)
            self.items.append(item)
        return bit

    def all(self, bits):
        found = self.lists.get(bits)
        if found is None:
            found, rest = [], bits
            while rest:
                low = rest & -rest
                found.append(self.items[low.bit_length() - 1])
                rest ^= low
            if len(self.lists) > 200000:
                self.lists.clear()
            self.lists[bits] = found
        return found


# A splice is (at, len, before), as struct kw_splice.


def inner(splice, outer):
    at, size, before = splice
    if outer <= at:
        return outer - before
    if outer < at + size:
        return at - before
    return outer - before - size


def outer(splice, number, bug=None):
    at, size, before = splice
    if number < at - before or (bug == 'edge' and number == at - before):
        return number + before
    return number + before + size


class World:
    """A script, and what may happen to it.

    A state has the ends and the sets of segments. Ends: what the client has acknowledged and received, whether its stream has ended, which requests the program has
    answered, the program and the server. Program: the splices, the number after the last byte that the socket may get (-1: unknown), whether the last answer
    is written, whether it is not acknowledged, its place. Server: bytes received, bytes out of order, executed, sent, acknowledged, the word, closed, how far
    the enrolment is, and numbers that were read too early (late, state). Sets: of the client; before the socket; there since before the enrolment; of the
    socket; before the client.
    """

    def __init__(self, script, bug=None, client_ends=False, server_ends=False, enrols=False, window=99, path=99, parts=False):
        self.kinds = [LETTERS[letter] for letter in script]
        self.bug, self.client_ends, self.server_ends, self.enrols, self.window, self.path, self.parts = bug, client_ends, server_ends, enrols, window, path, parts
        self.starts, self.answers, at, to = [], [], 0, 0
        for kind in self.kinds:
            self.starts.append(at)
            self.answers.append(to)
            at, to = at + SIZES[kind][0], to + SIZES[kind][1]
        self.size, self.reply_size = at, to
        self.starts.append(at)
        self.answers.append(to)
        self.end = at + client_ends
        self.client, self.up, self.down, self.wire = Interned(), Interned(), Interned(), Interned()
        self.memo = {}
        self.completed = {}

    # --- what belongs where

    def requests(self, taken):
        return [i for i in range(len(self.kinds)) if not taken >> i & 1]

    def stream(self, taken):
        """Places of the bytes that the server gets, in order."""
        key = ('stream', taken)
        if key not in self.memo:
            places = [p for i in self.requests(taken) for p in range(self.starts[i], self.starts[i + 1])]
            self.memo[key] = places + [self.size]
        return self.memo[key]

    def ends(self, taken):
        """After how many bytes of its stream a request of the server is complete."""
        key = ('ends', taken)
        if key not in self.memo:
            out, at = [], 0
            for i in self.requests(taken):
                at += SIZES[self.kinds[i]][0]
                out.append(at)
            self.memo[key] = out
        return self.memo[key]

    def written(self, taken, done, closed):
        """Places of the bytes that the server has written."""
        key = ('written', taken, done, closed)
        if key not in self.memo:
            out = []
            for i, end in zip(self.requests(taken), self.ends(taken)):
                if end <= done:
                    out += range(self.answers[i], self.answers[i + 1])
            self.memo[key] = tuple(out) + ((FIN,) if closed else ())
        return self.memo[key]

    def total(self, taken, done):
        """Bytes of all answers that there will be if the server closes now."""
        key = ('total', taken, done)
        if key not in self.memo:
            executed = [i for i, end in zip(self.requests(taken), self.ends(taken)) if end <= done]
            self.memo[key] = sum(SIZES[kind][1] for i, kind in enumerate(self.kinds) if taken >> i & 1 or i in executed)
        return self.memo[key]

    def group(self, first, last):
        """The requests that a segment of these bytes consists of, if each can be answered by the program."""
        key = ('group', first, last)
        if key not in self.memo:
            found = None
            if first in self.starts and last in self.starts and first < last:
                a, b = self.starts.index(first), self.starts.index(last)
                if all(kind in (HOT, SHORT) for kind in self.kinds[a:b]):
                    found = (a, b)
            for i, kind in enumerate(self.kinds):
                if kind == POISON and (first, last) == (self.starts[i] + 1, self.starts[i + 1]):
                    found = (i, i + 1)
            self.memo[key] = found
        return self.memo[key]

    # --- what each end may send

    def client_sends(self, una, ack):
        key = ('client', una, ack)
        if key not in self.memo:
            bits = 0
            for first in range(una, self.end):
                for last in range(first + 1, self.end + 1):
                    bits |= self.client.add((first, last, ack, 0))
                    if self.parts:
                        bits |= self.client.add((first, last, ack, IN_PARTS))
            for at in {una, self.end}:
                bits |= self.client.add((at, at, ack, 0))
            if una:
                bits |= self.client.add((una - 1, una - 1, ack, 0)) | self.client.add((una - 1, una, ack, 1))
            self.memo[key] = bits
        return self.memo[key]

    def server_sends(self, una, sent, written, ack):
        key = ('server', una, sent, written, ack)
        if key not in self.memo:
            bits = self.down.add((sent, (), ack))
            for first in range(una, len(written)):
                for last in range(first + 1, len(written) + 1):
                    bits |= self.down.add((first, written[first:last], ack))
            if una:
                bits |= self.down.add((una - 1, (), ack)) | self.down.add((una - 1, (GARBAGE,), ack))
            self.memo[key] = bits
        return self.memo[key]

    # --- the program

    def is_taken(self, program, segment):
        at, size, _ = program[0]
        first, last, _, garbage = segment
        if garbage == IN_PARTS:
            last = first if self.bug == 'parts' else self.size
        last = min(last, self.size)
        if not size or (self.bug == 'upward' and first < last):
            return False
        if first >= last:
            return at < first < at + size and self.bug != 'keepalive'
        return first < at + size and at < last

    def carry(self, segment):
        """The bit of a segment on its way to the client; 0 if the path does not take it."""
        return self.wire.add(segment) if len(segment[1]) <= self.path else 0

    def arrive(self, program, segment, received, room):
        """What the program does with a segment that it does not answer: the new program; the segments for the socket and for the client, or None."""
        into, out, follows, written, owed, place = program
        first, last, ack, garbage = segment
        size = min(last, self.size) - first
        out_end, in_end = out[0] + out[1], into[0] + into[1]
        if owed and ack >= out_end:
            owed = 0
        if garbage == IN_PARTS and self.bug != 'pieced':
            follows = NEVER
        again = None
        if self.bug == 'mute' and size <= 0 and into[1] and first == in_end:
            up = (inner(into, first) - 1, (), 0)
        elif self.is_taken(program, segment):
            is_owed = ack < out_end and self.bug != 'norepeat'
            up = (into[0] - into[2] - 1, (), inner(out, ack))
            again = size > 0 and is_owed and (written or self.bug == 'ready')
        elif owed and written and first == last and first >= in_end and ack < out_end and self.bug not in ('deaf', 'norepeat') and (
                first == in_end or self.bug != 'narrow'):
            up = (inner(into, first), (), inner(out, ack))
            again = True
        else:
            up = (inner(into, first), (GARBAGE,) if garbage == 1 else tuple(range(first, last)), inner(out, ack))
            here = outer(into, received, self.bug)
            if self.bug == 'window':
                counts = first != last and 0 <= last - here <= room
            else:
                counts = first != last
            if garbage == IN_PARTS:
                counts = False
            if counts and follows < last and follows != NEVER:
                follows = last
                if self.bug == 'settled' and into[1] and follows > in_end:
                    into = (here, 0, into[2] + into[1])
        if again:
            has = max(ack - out[0], 0)
            end = out[1] if self.bug == 'whole' else has + 1
            at = place if self.bug == 'repeatseq' else place + has
            places = range(at, place + end) if written else (UNWRITTEN,) * (end - has)
            again = (out[0] + has, tuple(places), in_end if end == out[1] or self.bug == 'acking' else into[0])
        return (into, out, follows, written, owed, place), up, again

    def depart(self, program, segment):
        """A segment of the socket as the client gets it."""
        into, out, _, _, owed, _ = program
        first, places, ack = segment
        at = out[0] - out[2]
        translated, number = outer(into, ack, self.bug), outer(out, first, self.bug)
        if first < at < first + len(places) and self.bug != 'across':
            if owed and self.bug == 'dropped':
                return None
            number = out[0] - len(places) if owed else first + out[2] + out[1]
        if owed and self.bug != 'acked' and first + len(places) <= at:
            translated = min(translated, into[0])
        return number, places, translated

    def replies(self, program, segment, facts):
        """The program, the answer and the requests, if the segment is answered."""
        into, out, follows, _, _, _ = program
        first, last, ack, garbage = segment
        received, sent, written, word, closed = facts
        group = self.group(first, last)
        if group is None or garbage or closed or follows < 0:
            return None
        if word != received and self.bug != 'word':
            return None
        if word != received and word < 0:
            return None
        if first != follows and self.bug != 'next':
            return None
        if first != outer(into, received, self.bug) and self.bug != 'gap':
            return None
        if sent != written and self.bug != 'unsent':
            return None
        if ack != outer(out, sent if self.bug == 'unsent' else written, self.bug) and self.bug != 'ack':
            return None
        place = self.answers[group[0]]
        size = self.answers[group[1]] - place
        into = (first, last - first, into[2] + into[1])
        out = (ack, size, out[2] + out[1])
        return (into, out, last, 0, 1, place), (ack, tuple(range(place, place + size)), last), group

    # --- what is accepted

    def client_takes(self, una, got, ended, taken, done, received, segment):
        seq, places, ack = segment
        if ack > una:
            have = sum(1 for place in self.stream(taken) if place < ack)
            if have > received:
                raise Wrong('the client gets an acknowledgement of byte %d, which the server lacks' % (ack - 1))
            una = min(ack, self.end)
        for i, place in enumerate(places):
            at = seq + i
            if at < got or ended:
                continue
            if place == FIN:
                if at != self.total(taken, done):
                    raise Wrong('the stream ends for the client after %d bytes, not %d' % (at, self.total(taken, done)))
            elif place != at:
                raise Wrong('the client gets %s as byte %d of the answers' % ('garbage' if place < 0 else 'byte %d' % place, at))
        if seq <= got and not ended:
            for place in places[got - seq:]:
                if place == FIN:
                    ended = 1
                else:
                    got += 1
        return una, got, ended

    def socket_takes(self, taken, server, got, ended, segment):
        received, early, done, sent, una, word, closed, stage, look = server
        seq, places, ack = segment
        if una < ack <= sent:
            have = self.written(taken, done, closed)[:ack]
            if any(place >= got or (place == FIN and not ended) for place in have):
                raise Wrong('the server gets an acknowledgement of %d bytes of its answers, which the client lacks' % ack)
            una = ack
        end, data = seq + len(places), self.size - sum(SIZES[k][0] for i, k in enumerate(self.kinds) if taken >> i & 1)
        room = self.window - (min(received, data) - done)
        if places and end > received and not closed and room > 0 and seq - received <= room:
            pending = dict(early)
            for i, place in enumerate(places):
                if seq + i >= received:
                    pending.setdefault(seq + i, place)
            stream = self.stream(taken)
            while received in pending:
                place = pending.pop(received)
                if received >= len(stream) or stream[received] != place:
                    raise Wrong('the server receives %s as byte %d' % ('garbage' if place < 0 else 'byte %d' % place, received))
                received += 1
            early = tuple(sorted(pending.items()))
        return received, early, done, sent, una, word, closed, stage, look

    # --- the states

    def first(self):
        nothing = (0, 0, 0)
        program = (nothing, nothing, -1, 0, 0, 0)
        server = (0, (), 0, 0, 0, -1, 0, 0 if self.enrols else 2, None)
        return (0, 0, 0, 0, program, server), (0, 0, 0, 0, 0)

    def facts(self, taken, server):
        received, _, done, sent, _, word, closed, _, _ = server
        is_end = received == len(self.stream(taken))
        return received - is_end, sent, len(self.written(taken, done, closed)), word, closed

    def room(self, taken, server):
        return self.window - (self.facts(taken, server)[0] - server[2])

    def close(self, ends, sets):
        """The sets with everything that can be sent and passed on without a change of the ends."""
        una, got, ended, taken, program, server = ends
        client, up, before, down, wire = sets
        received, early, done, sent, acked, word, closed, stage, look = server
        client |= self.client_sends(una, got + ended)
        down |= self.server_sends(acked, sent, self.written(taken, done, closed), received)
        room = self.room(taken, server)
        key = ('in', client, program, received, room, stage == 0)
        found = self.memo.get(key)
        if found is None:
            ups = again = 0
            for segment in self.client.all(client):
                if stage == 0:
                    ups |= self.up.add((segment[0], (GARBAGE,) if segment[3] == 1 else tuple(range(segment[0], segment[1])), segment[2]))
                    continue
                after, rises, repeat = self.arrive(program, segment, received, room)
                if after == program:
                    ups |= self.up.add(rises)
                    if repeat:
                        again |= self.carry(repeat)
            found = self.memo[key] = ups, again
        up, wire = up | found[0], wire | found[1]
        key = ('out', down, program[0], program[1], program[4])
        found = self.memo.get(key)
        if found is None:
            found = 0
            for segment in self.down.all(down):
                sees = self.depart(program, segment)
                if sees:
                    found |= self.carry(sees)
            self.memo[key] = found
        return client, up, before, down, wire | found

    def steps(self, ends, sets):
        una, got, ended, taken, program, server = ends
        client, up, before, down, wire = sets
        received, early, done, sent, acked, word, closed, stage, look = server
        # The client accepts a segment.
        key = ('c', una, got, ended, taken, done, received, wire)
        found = self.memo.get(key)
        if found is None:
            found = {self.client_takes(una, got, ended, taken, done, received, segment) for segment in self.wire.all(wire)}
            self.memo[key] = found
        for after in found:
            if after != (una, got, ended):
                yield 'the client accepts', (*after, taken, program, server), sets
        # The socket accepts one.
        key = ('s', taken, server, got, ended, up | before)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = {self.socket_takes(taken, server, got, ended, segment) for segment in self.up.all(up | before)}
        for after in found:
            if after != server:
                yield 'the socket accepts', (una, got, ended, taken, program, after), sets
        # The server executes a request, publishes, has sent, closes.
        facts = self.facts(taken, server)
        if not closed:
            for end in self.ends(taken):
                if done < end <= facts[0]:
                    yield 'the server executes', (una, got, ended, taken, program, server[:2] + (end,) + server[3:]), sets
                    break
            words = {done}
            if self.bug == 'half':
                words.add(facts[0])
            if self.bug == 'early':
                words |= {end for end in self.ends(taken) if end <= facts[0]}
            for new in words:
                if new > word:
                    yield 'the server publishes', (una, got, ended, taken, program, server[:5] + (new,) + server[6:]), sets
            is_end = received == len(self.stream(taken)) and done == facts[0]
            if self.server_ends or is_end:
                yield 'the server closes', (una, got, ended, taken, program, server[:6] + (1,) + server[7:]), sets
        if sent != facts[2]:
            yield 'the socket has sent', (una, got, ended, taken, program, server[:3] + (facts[2],) + server[4:]), sets
        # Enrolment.
        if stage == 0:
            yield 'enrolled', (una, got, ended, taken, program, server[:7] + (1,) + server[8:]), (client, 0, before | up, down, wire)
            return
        if stage == 1:
            yield 'settled', (una, got, ended, taken, program, server[:7] + (2,) + server[8:]), (client, up, 0, down, wire)
        # The program.
        if program[1][1] and not program[3]:
            yield 'the answer is written', (una, got, ended, taken, program[:3] + (1,) + program[4:], server), sets
        room = self.room(taken, server)
        key = ('p', client, program, received, room)
        found = self.memo.get(key)
        if found is None:
            found = {self.arrive(program, segment, received, room)[0] for segment in self.client.all(client)}
            self.memo[key] = found
        for after in found:
            if after != program:
                yield 'the program passes', (una, got, ended, taken, after, server), sets
        if stage < 2 and self.bug != 'soon':
            return
        if self.bug in ('late', 'state'):
            if look is None:
                yield 'the program reads numbers', (una, got, ended, taken, program, server[:8] + (facts,)), sets
            else:
                facts = look[:3] + (facts[3], look[4])
        key = ('r', client, program, facts)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = list(filter(None, (self.replies(program, segment, facts) for segment in self.client.all(client))))
        for after, answer, group in found:
            executed = [i for i, end in zip(self.requests(taken), self.ends(taken)) if end <= done]
            for i in range(group[0]):
                if not taken >> i & 1 and i not in executed:
                    raise Wrong('request %d is answered before request %d is executed' % (group[0], i))
            for i in range(*group):
                if taken >> i & 1 or i in executed:
                    raise Wrong('request %d is answered twice' % i)
            mask = taken | ((1 << group[1]) - (1 << group[0]))
            told = self.up.add((inner(program[0], answer[2] - after[0][1]), (), inner(program[1], answer[0])))
            for more in {'told': (told,), 'untold': (0,), 'mute': (0,)}.get(self.bug, (told, 0)):
                yield 'the program answers', (una, got, ended, mask, after, server[:8] + (None,)), (
                    client, up | more, before, down, wire | self.carry(answer))

    # --- without loss

    def complete(self, ends):
        """Raises Wrong if retransmission alone does not bring both ends to their end."""
        for part in (0, 1):
            self.complete_with(ends, part)

    def complete_with(self, ends, part):
        una, got, ended, taken, program, server = ends
        if server[7] == 0:
            return
        server = server[:8] + (None,)
        if program[1][1]:
            program = program[:3] + (1,) + program[4:]
        stream = self.stream(taken)
        known = [una, program[2], program[0][0] + program[0][1]] + [stream[p] + 1 for p in range(server[0])] + [place + 1 for _, place in server[1]]
        # The client has written no more than is known of, and goes on when it has its answers.
        wrote = max([bound for bound in self.starts + [self.end] if bound <= self.end and bound >= max(known)][:1] or [self.end])
        most = 99

        def to_client(segment):
            nonlocal una, got, ended, most
            if not segment:
                return
            if len(segment[1]) > self.path:
                # Linux believes it of a segment that is not acknowledged (tcp_v4_err).
                if server[4] <= (segment[0] if self.bug == 'quoted' else inner(program[1], segment[0])) <= server[3]:
                    most = self.path
                return
            una, got, ended = self.client_takes(una, got, ended, taken, server[2], server[0], segment)
            if segment[1]:
                to_program((una if una == wrote else wrote, una if una == wrote else wrote, got + ended, 0))

        def to_program(segment):
            nonlocal program
            program, rises, again = self.arrive(program, segment, server[0], self.room(taken, server))
            if again:
                to_client(again)
            to_socket(rises)

        def to_socket(segment):
            nonlocal server
            if segment[0] + len(segment[1]) < server[0]:
                # Linux answers, and looks at nothing else (tcp_validate_incoming).
                respond()
                return
            server = self.socket_takes(taken, server, got, ended, segment)
            if segment[1]:
                respond()

        def respond():
            to_client(self.depart(program, (server[3], (), server[0])))

        for _ in range(40):
            before = una, got, ended, program, server, wrote, most
            facts = self.facts(taken, server)
            if not server[6]:
                done = max([end for end in self.ends(taken) if end <= facts[0]] + [server[2]])
                is_end = server[0] == len(self.stream(taken)) and done == facts[0]
                written = len(self.written(taken, done, int(is_end)))
                server = server[:2] + (done, written, server[4], done, int(is_end)) + server[7:]
            else:
                server = server[:3] + (facts[2],) + server[4:]
            if server[4] < server[3]:
                data = self.written(taken, server[2], server[6])
                to_client(self.depart(program, (server[4], data[server[4]:min(server[3], server[4] + most)], server[0])))
            if una < wrote and not server[6] | ended:
                to_program((una, una + 1 if part else wrote, got + ended, 0))
            elif una < wrote and not ended:
                to_program((una, una + 1 if part else min(wrote, self.size), got + ended, 0))
            answered = max([a for s, a in zip(self.starts, self.answers) if s <= wrote])
            if una == wrote and got == answered and wrote < self.end:
                wrote = min(s for s in self.starts + [self.end] if s > wrote)
            if (una, got, ended, program, server, wrote, most) == before:
                break
        finished = ended if server[6] else una == self.end and got == self.reply_size
        if not finished or server[4] != server[3]:
            raise Wrong('the client waits for ever: %d of its %d bytes acknowledged, %d bytes of answers, the server has %d of %d acknowledged' % (
                una, wrote, got, server[4], server[3]))
        if ended or server[6]:
            return
        if inner(program[0], una) != server[0] or inner(program[1], got) != server[3]:
            raise Wrong('the ends do not agree on their numbers')
        if outer(program[0], server[0], self.bug) != una or outer(program[1], server[3], self.bug) != got:
            raise Wrong('the ends do not agree on their numbers')
        for garbage in (0, 1):
            if una:
                _, rises, _ = self.arrive(program, (una - 1, una - 1 + garbage, got, garbage), server[0], self.room(taken, server))
                if rises[0] + len(rises[1]) > server[0] or (rises[0] == server[0]):
                    raise Wrong('a keepalive of the client gets no answer')
            if server[3]:
                sees = self.depart(program, (server[3] - 1, (GARBAGE,) * garbage, server[0]))
                if not sees or sees[0] >= got:
                    raise Wrong('a keepalive of the server gets no answer')

    def explore(self, limit=10 ** 9):
        """States walked; what is wrong and how it comes about, or None."""
        ends, sets = self.first()
        todo, seen, walked, trail = [(ends, sets, None)], {}, 0, {}
        while todo:
            following = []
            for ends, sets, how in todo:
                try:
                    sets = self.close(ends, sets)
                    known = seen.setdefault(ends, [])
                    if any(not (a & ~A or b & ~B or c & ~C or d & ~D or e & ~E)
                           for A, B, C, D, E in known for a, b, c, d, e in (sets,)):
                        continue
                    a, b, c, d, e = sets
                    known[:] = [other for other in known if other[0] & ~a or other[1] & ~b or other[2] & ~c or other[3] & ~d or other[4] & ~e]
                    known.append(sets)
                    walked += 1
                    if len(known) == 1 and ends not in self.completed:
                        self.completed[ends] = 1
                        self.complete(ends)
                    for name, after, more in self.steps(ends, sets):
                        following.append((after, more, (name, how)))
                except Wrong as wrong:
                    names, step = [], how
                    while step:
                        names.append(step[0])
                        step = step[1]
                    return walked, str(wrong), names[::-1]
                if walked >= limit:
                    return walked, None, None
            todo = following
            if len(self.memo) > 400000:
                self.memo.clear()
        return walked, None, None


# Script, what else may happen, and whether --quick has it.
RUNS = [('sh', {}, True), ('sh', {'path': 1}, True), ('nh', {'parts': True}, True), ('sh', {'parts': True}, False), ('hl', {'path': 1}, False), ('sh', {'window': 2}, True), ('hs', {}, True), ('nh', {'enrols': True}, True), ('nh', {'server_ends': True}, True),
        ('ngg', {}, False), ('nhs', {}, False), ('nh', {'client_ends': True}, False), ('sh', {'server_ends': True}, False)]
FAULTS = [('upward', 'a request that was answered reaches the socket', 'sh', {}),
          ('norepeat', 'a lost answer is not repeated', 'sh', {}),
          ('repeatseq', 'a repeated answer has the number that the client acknowledges, and all its bytes', 'shs', {}),
          ('whole', 'an answer is repeated in one piece', 'sh', {'path': 1}),
          ('acking', 'a piece that is not the last one acknowledges the request', 'sh', {}),
          ('quoted', 'a message about a segment that is too long keeps the number of the client', 'shgl', {'path': 1}),
          ('parts', 'of a segment in parts only the bytes count that are in the first one', 'sh', {'parts': True}),
          ('pieced', 'requests are answered while parts of a segment may be on their way', 'sh', {'parts': True}),
          ('ready', 'an answer is repeated before it is written', 'sh', {}),
          ('deaf', 'an empty segment does not get the answer again', 'nhs', {}),
          ('narrow', 'it gets it only if it follows the request at once', 'nhs', {}),
          ('mute', 'neither a request that is answered nor what follows its answer acknowledges anything to the socket', 'sh', {}),
          ('keepalive', 'a keepalive that follows a byte of the request is passed on', 'sh', {}),
          ('late', 'the word is read after the numbers of the socket', 'sh', {}),
          ('word', 'the word is not compared with the bytes received', 'sh', {}),
          ('next', 'segments on their way to the socket do not count', 'sh', {}),
          ('gap', 'a segment may follow bytes that the socket lacks', 'sh', {}),
          ('ack', 'the client need not have all that was sent', 'sh', {}),
          ('unsent', 'not all that was written need be sent', 'sh', {}),
          ('state', 'the state of the socket is read before the lock is taken', 'nh', {'server_ends': True}),
          ('early', 'the word is published before the answer is written', 'sh', {}),
          ('half', 'the word is published when a part of a request was read', 'sp', {}),
          ('window', 'what ends beyond the window does not count', 'sh', {'window': 2}),
          ('soon', 'the first answer does not wait for what was on its way at enrolment', 'nh', {'enrols': True}),
          ('edge', 'the number where the splice was made is translated to the one before it', 'sh', {}),
          ('acked', 'the socket acknowledges a request whose answer may be lost', 'sh', {}),
          ('across', 'a segment of the socket covers the answer', 'sh', {'server_ends': True}),
          ('dropped', 'such a segment is dropped', 'sh', {'server_ends': True}),
          ('settled', 'the splice is forgotten when something follows it', 'nhn', {})]


def name(script, options):
    more = ''.join(', ' + {'window': 'a window of %s bytes', 'path': 'a path for %s bytes', 'parts': 'segments in parts', 'enrols': 'enrolled in mid-stream', 'client_ends': 'the client ends its stream',
                           'server_ends': 'the server may close at any time'}[key].replace('%s', str(value)) for key, value in options.items())
    return '+'.join(LETTERS[letter] for letter in script) + more


def main():
    if set(sys.argv[1:]) - {'--quick'}:
        print('usage: model/tcp_door.py [--quick]')
        return 2
    quick = '--quick' in sys.argv
    passed = failed = 0
    runs = [(None, script, options) for script, options, first in RUNS if first or not quick]
    runs += [('told', 'sh', {}), ('untold', 'sh', {})]
    for bug, script, options in runs:
        states, wrong, trail = World(script, bug, **options).explore()
        print('%s  %8d states  %s%s%s' % ('FAIL' if wrong else 'ok  ', states, name(script, options), ', ' + bug if bug else '', ': ' + wrong if wrong else ''), flush=True)
        for step in trail or ():
            print('        ' + step)
        passed, failed = passed + (not wrong), failed + bool(wrong)
    for bug, what, script, options in FAULTS:
        _, wrong, _ = World(script, bug, **options).explore()
        print('%-10s  %-10s %s%s' % ('caught' if wrong else 'NOT CAUGHT', bug, what, ': ' + wrong if wrong else ''), flush=True)
        passed, failed = passed + bool(wrong), failed + (not wrong)
    print('%d passed, %d failed' % (passed, failed))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
