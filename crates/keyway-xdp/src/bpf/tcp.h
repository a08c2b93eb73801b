/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Answering on a TCP connection that a server's socket goes on serving: TCP splicing (Maltz and Bhagwat, "TCP Splicing for
 * Application Layer Performance", 1998).
 *
 * A request that is answered here never reaches the server's socket, and the answer does not come from it. So the two ends count
 * differently: *outer* numbers are the client's, *inner* ones the server's socket's. From its first answer on, every segment of the
 * connection is translated, in both directions, until the connection has ended.
 *
 * A request is answered only if the connection is *at rest* (`kw_is_at_rest`): everything that the client has sent before was read and
 * executed by the server, and everything that the server has sent was acknowledged by the client. So at most one answer is on
 * its way, nothing that the server sent before it will be needed again, and one splice a direction is exact.
 *
 * No link on the path may be too narrow for an answer for ever. The first time it is one segment, of a length that nearly every path takes. It is
 * sent again in pieces that every path takes, each when the client has acknowledged the one before.
 *
 * A segment that arrives in parts (IP fragments) has its numbers in the first part only, which does not tell how long it is. The stack puts
 * it together later, out of sight. So a first part is passed on only if no length could bring what was answered here to the socket, and
 * nothing more is answered on its connection: the splice stays where it is for the parts that may still wait.
 *
 * The functions here know numbers only. They run under the connection's lock, which makes each segment's translation one step.
 * `model/tcp_door.py` explores them with loss, reordering and retransmission.
 */
#ifndef KW_TCP_H
#define KW_TCP_H

#include "env.h"

/* linux/tcp.h; the fourteenth byte of the header */
#define KW_TCP_FIN 0x01
#define KW_TCP_SYN 0x02
#define KW_TCP_RST 0x04
#define KW_TCP_PSH 0x08
#define KW_TCP_ACK 0x10
#define KW_TCP_ESTABLISHED 1

/* The numbers of a connection. */
struct kw_numbers {
	struct kw_splice in;  /* what the client sends: the last request that was answered here */
	struct kw_splice out; /* what it receives: the answer to it */
};

/* What is known of a connection, kept at the server's socket (socket-local storage) from the moment when the server enrols it. The
* server writes `slot` and `ticket`, once. */
struct kw_connection {
	struct bpf_spin_lock lock;
	/* where the server publishes that the connection is at rest, and what it adds to the number of bytes that it has read */
	__u32 slot;
	__u64 ticket;
	/* nanoseconds of CLOCK_MONOTONIC: when it was enrolled; when the server's socket last sent something, up to KW_TICK_NS too early */
	__u64 enrolled_ns;
	__u64 received_ns;
	struct kw_numbers numbers;
	/* outer number after the last byte that the server's socket may have got */
	__u32 next;
	/* how the server's socket last sent something: interface, timestamp, window, link addresses; the last timestamp that the client
	* may have seen */
	__u32 interface;
	__u32 received_stamp;
	__u32 stamp;
	__u16 window; /* network byte order, scaled */
	__u8 link[12];
	__u8 is_stamped;
	__u8 has_next;
	__u8 has_received;
	/* the client has not acknowledged the last answer yet */
	__u8 is_owed;
	/* a part of a segment has arrived */
	__u8 has_parts;
	__u8 unused;
	/* length of the last answer; 0 while it is written */
	__u32 answer_len;
	__u8 answer[KW_PAYLOAD_MAX];
};

_Static_assert(__builtin_offsetof(struct kw_connection, ticket) == 8, "what the server writes");
_Static_assert(sizeof(struct kw_connection) == 96 + KW_PAYLOAD_MAX, "no gap that the server does not know");

/* A segment from the client, or of the socket, in host byte order, but for `ports` and `stamp`. */
struct kw_segment {
	__u32 ports;
	__u32 seq;
	__u32 ack;
	__u32 len; /* of its data */
	__u32 interface;
	__u32 window;
	__u32 stamp;
	__u8 flags;
	__u8 is_stamped;
	__u8 is_plain; /* no options but timestamps, nothing unusual in its headers */
	__u8 is_part;  /* the first part of a segment, of which `len` bytes are here */
};

/* The server's socket, at one instant. Of a segment that has no answer only `received` and `mss` count. */
struct kw_facts {
	__u32 state;
	__u32 received; /* inner number after the last byte that it has received in order */
	__u32 sent;     /* after the last that it has sent; and that it was given to send */
	__u32 written;
	__u32 mss;
	__u32 in_flight; /* segments that it believes not acknowledged */
	__u32 scale;    /* of the client's window */
	__u64 bytes_received;
};

enum kw_step {
	KW_PASS,    /* to the server's socket, translated */
	KW_REPLY,   /* the answer goes out and the request ends here */
	KW_REPEAT,  /* the last answer goes out once more */
	KW_REMIND,  /* nothing of it is new to the server: its socket is asked for an acknowledgement */
};

/* What to do with a segment from the client. */
struct kw_plan {
	enum kw_step step;
	/* numbers of the segment for the server's socket */
	__u32 seq;
	__u32 ack;
	/* of a segment that is passed on: how its selective acknowledgements are translated */
	struct kw_splice edges;
	/* numbers, length and headers of the answer, if one goes out; of one that goes out again, where its piece begins */
	__u32 reply_seq;
	__u32 reply_ack;
	__u32 reply_len;
	__u32 reply_from;
	__u32 stamp;
	/* the server's socket has to learn what the client has acknowledged */
	__u32 tells;
	__u16 window;
	__u8 link[12];
};

/* Numbers come round: a is before b if it is less than half the circle behind (RFC 9293, section 3.4). */
KW_INLINE int kw_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

/* The inner number of an outer one. Those that do not exist inside are where the splice was made. */
KW_INLINE __u32 kw_inner(const struct kw_splice *splice, __u32 outer)
{
	__u32 past = outer - splice->at;

	if ((__s32)past <= 0)
		return outer - splice->before;
	if (past < splice->len)
		return splice->at - splice->before;
	return outer - splice->before - splice->len;
}

/* The outer number of an inner one. Where the splice was made, it is the one after it. */
KW_INLINE __u32 kw_outer(const struct kw_splice *splice, __u32 inner)
{
	if (kw_before(inner, splice->at - splice->before))
		return inner + splice->before;
	return inner + splice->before + splice->len;
}

/* A splice that is a quarter of the circle behind is only an offset: no segment from before it can be on its way any more (the
* largest window is 1 GiB, RFC 7323), and numbers half a circle behind would seem to be ahead. */
KW_INLINE void kw_settle(struct kw_splice *splice, __u32 outer)
{
	if ((__s32)(outer - splice->at) > 1 << 30) {
		splice->before += splice->len;
		splice->len = 0;
		splice->at = outer;
	}
}

KW_INLINE int kw_is_spliced(const struct kw_numbers *numbers)
{
	return (numbers->in.len | numbers->in.before) != 0;
}

/* Longest IP packet, all of which may be a segment's data. */
#define KW_WHOLE_MAX 65535

/* Whether the segment has, or may have, a byte of the request that was answered last, or claims to follow one of them (a keepalive). */
KW_INLINE int kw_is_taken(const struct kw_splice *in, const struct kw_segment *segment)
{
	__u32 end = segment->seq + (segment->is_part ? KW_WHOLE_MAX : segment->len);

	if (!in->len || segment->flags & KW_TCP_RST)
		return 0;
	if (end == segment->seq)
		return segment->seq - in->at - 1 < in->len - 1;
	return kw_before(segment->seq, in->at + in->len) && kw_before(in->at, end);
}

/* How long after it was enrolled a connection is left alone: segments that passed before have reached the socket by then. */
#define KW_SETTLE_NS 100000000ull

/* Whether the connection was enrolled so long ago, and its socket has sent something lately. */
KW_INLINE int kw_is_open(const struct kw_connection *c, __u64 now_ns)
{
	return now_ns - c->received_ns <= KW_PATH_NS && now_ns - c->enrolled_ns >= KW_SETTLE_NS;
}

/* Whether the connection is at rest, and this segment the next one: nothing is on its way in either direction. `word` is what the
* server has published. */
KW_INLINE int kw_is_at_rest(const struct kw_connection *c, const struct kw_segment *segment, const struct kw_facts *facts, __u64 word)
{
	const struct kw_numbers *numbers = &c->numbers;

	if (facts->state != KW_TCP_ESTABLISHED || !c->has_next || !c->has_received || c->has_parts || c->interface != segment->interface)
		return 0;
	/* The server has executed all that its socket has received... */
	if (!word || word != c->ticket + facts->bytes_received)
		return 0;
	/* ...this is what comes next, and no other segment is on its way from here to the socket... */
	if (segment->seq != c->next || segment->seq != kw_outer(&numbers->in, facts->received))
		return 0;
	/* ...all that the server has written was sent, and the client has received it. */
	return facts->sent == facts->written && segment->ack == kw_outer(&numbers->out, facts->written);
}

/* Whether an answer of `len` bytes fits the segment and the client's window, and looks like the socket's own segments. */
KW_INLINE int kw_fits(const struct kw_connection *c, const struct kw_segment *segment, const struct kw_facts *facts, __u32 len)
{
	if (!segment->is_plain || (segment->flags & ~KW_TCP_PSH) != KW_TCP_ACK || segment->is_stamped != c->is_stamped)
		return 0;
	return len <= facts->mss && len <= segment->window << (facts->scale & 15);
}

/* A coarse clock is at most a tick behind (CONFIG_HZ is 100 or more). */
#define KW_TICK_NS 10000000ull

/* The timestamp for an answer (RFC 7323): never less than the socket's last one, and never ahead of its clock. */
KW_INLINE __u32 kw_stamp(struct kw_connection *c, __u64 now_ns)
{
	__u64 received_ns = c->received_ns + KW_TICK_NS;
	__u32 stamp = c->received_stamp + (now_ns > received_ns ? (__u32)((now_ns - received_ns) / 1000000) : 0);

	if (kw_before(stamp, c->stamp))
		stamp = c->stamp;
	c->stamp = stamp;
	return stamp;
}

/* The socket learns from a request that is answered here what the client has acknowledged, if it sent that so long ago: well before it would
* send it again (Linux: 200 ms and more, for one segment), even if the client's next acknowledgement, of the answer, takes a while (Linux: 40 ms).
* Until then it learns it from what is passed on anyway. */
#define KW_TELL_NS 50000000ull

/* Most bytes that a segment can be ahead of what the socket has received: the largest window (RFC 7323). */
#define KW_AHEAD_MAX (1 << 30)

/* The segment goes to the socket, which has received up to `received`, an outer number. */
KW_INLINE void kw_note(struct kw_connection *c, const struct kw_segment *segment, __u32 received)
{
	__u32 end = segment->seq + segment->len + (segment->flags & KW_TCP_FIN ? 1 : 0);

	/* The socket may take it, whatever its window is by then. A forged segment can silence this connection, and no more. */
	if (end != segment->seq && (__s32)(segment->seq - received) <= KW_AHEAD_MAX && (!c->has_next || kw_before(c->next, end))) {
		c->next = end;
		c->has_next = 1;
	}
}

/* The same, with the numbers that it gets. */
KW_INLINE void kw_pass(struct kw_connection *c, const struct kw_segment *segment, const struct kw_facts *facts, struct kw_plan *plan)
{
	struct kw_numbers *numbers = &c->numbers;
	__u32 received = kw_outer(&numbers->in, facts->received);

	plan->step = KW_PASS;
	plan->seq = kw_inner(&numbers->in, segment->seq);
	plan->ack = kw_inner(&numbers->out, segment->ack);
	plan->edges = numbers->out;
	kw_note(c, segment, received);
	kw_settle(&numbers->in, received);
}

/* No answer is shorter ("HD\r\n"). Not 1: the verifier of Linux 6.1 takes no bound from a comparison with 0. */
#define KW_REPLY_MIN 2

/* The piece of the answer that the client lacks next. Only the last one acknowledges the request: until then the client sends it again, if the
 * piece or its own acknowledgement is lost. */
KW_INLINE void kw_cut(const struct kw_connection *c, const struct kw_segment *segment, const struct kw_facts *facts, struct kw_plan *plan)
{
	const struct kw_splice *in = &c->numbers.in, *out = &c->numbers.out;
	__u32 from = segment->ack - out->at, len, most = facts->mss < KW_PIECE ? facts->mss : KW_PIECE;

	/* An old acknowledgement. */
	if ((__s32)from < 0)
		from = 0;
	if (from > c->answer_len - KW_REPLY_MIN)
		from = c->answer_len - KW_REPLY_MIN;
	if (most < KW_REPLY_MIN)
		most = KW_REPLY_MIN;
	len = c->answer_len - from;
	plan->reply_ack = in->at + in->len;
	if (len > most) {
		len = most;
		plan->reply_ack = in->at;
	}
	plan->reply_from = from;
	plan->reply_len = len;
	plan->reply_seq = out->at + from;
}

/* Decides on a segment from the client, and does what the decision changes. `answer_len` is that of its answer, 0 if it has none; then
* `word` is not needed. PUBLISH: with KW_REPLY the request is answered; `answer_len` of the connection is set when the answer is in
* `answer`. */
KW_INLINE void kw_arrive(struct kw_connection *c, const struct kw_segment *segment, const struct kw_facts *facts, __u64 word,
			 __u32 answer_len, __u64 now_ns, struct kw_plan *plan)
{
	struct kw_numbers *numbers = &c->numbers;
	__u32 after = numbers->in.at + numbers->in.len, end = numbers->out.at + numbers->out.len;
	int lacks_answer, is_taken;

	if (KW_RARE(segment->is_part))
		c->has_parts = 1;
	/* Most segments of a connection that was never answered. */
	if (!answer_len && !kw_is_spliced(numbers)) {
		plan->step = KW_PASS;
		plan->seq = segment->seq;
		plan->ack = segment->ack;
		kw_note(c, segment, facts->received);
		return;
	}
	lacks_answer = numbers->out.len && kw_before(segment->ack, end);
	is_taken = kw_is_taken(&numbers->in, segment);
	if (!lacks_answer)
		c->is_owed = 0;
	if (KW_RARE(is_taken)) {
		/* Never to the server: it must not execute what was answered here. Its socket gets the number before what it has received,
		 * and acknowledges, as to a keepalive. */
		plan->step = lacks_answer && c->answer_len ? KW_REPEAT : KW_REMIND;
		plan->seq = numbers->in.at - numbers->in.before - 1;
		plan->tells = 1;
	} else if (KW_RARE(lacks_answer && c->is_owed && c->answer_len && !segment->len && !kw_before(segment->seq, after) &&
			   !(segment->flags & (KW_TCP_FIN | KW_TCP_SYN | KW_TCP_RST)))) {
		/* It knows that its request has arrived, and so will not send it again, but has not got the answer. */
		plan->step = KW_REPEAT;
		plan->seq = kw_inner(&numbers->in, segment->seq);
		plan->tells = 1;
	} else if (answer_len && kw_is_open(c, now_ns) && kw_is_at_rest(c, segment, facts, word) && kw_fits(c, segment, facts, answer_len)) {
		plan->step = KW_REPLY;
		plan->seq = kw_inner(&numbers->in, segment->seq);
		/* Several segments are probed for sooner (RFC 8985, section 7.2). */
		plan->tells = facts->in_flight > 1 || (facts->in_flight && now_ns - c->received_ns >= KW_TELL_NS);
		plan->ack = kw_inner(&numbers->out, segment->ack);
		plan->reply_seq = segment->ack;
		plan->reply_ack = segment->seq + segment->len;
		plan->reply_len = answer_len;
		numbers->in.before += numbers->in.len;
		numbers->in.at = segment->seq;
		numbers->in.len = segment->len;
		numbers->out.before += numbers->out.len;
		numbers->out.at = segment->ack;
		numbers->out.len = answer_len;
		c->next = segment->seq + segment->len;
		c->answer_len = 0;
		c->is_owed = 1;
	} else {
		kw_pass(c, segment, facts, plan);
		return;
	}
	if (plan->step != KW_REPLY)
		plan->ack = kw_inner(&numbers->out, segment->ack);
	if (plan->step == KW_REPEAT)
		kw_cut(c, segment, facts, plan);
	plan->window = c->window;
	__builtin_memcpy(plan->link, c->link, 12);
	plan->stamp = kw_stamp(c, now_ns);
}

/* A segment that the server's socket sends, in host byte order, but for `window`. */
struct kw_sending {
	__u32 seq;
	__u32 ack;
	__u32 stamp;
	__u32 interface;
	__u32 len; /* of its data */
	__u16 window; /* network byte order */
	__u8 flags;
	__u8 is_stamped;
	__u8 link[12];
};

/* Learns from it how the socket sends. */
KW_INLINE void kw_receive(struct kw_connection *c, const struct kw_sending *sending, __u64 now_ns)
{
	if (sending->flags & (KW_TCP_RST | KW_TCP_SYN))
		return;
	c->received_ns = now_ns;
	c->interface = sending->interface;
	c->window = sending->window;
	__builtin_memcpy(c->link, sending->link, 12);
	c->is_stamped = sending->is_stamped;
	if (sending->is_stamped) {
		c->received_stamp = sending->stamp;
		if (!c->has_received || kw_before(c->stamp, sending->stamp))
			c->stamp = sending->stamp;
	}
	c->has_received = 1;
}

/* Translates it into `seq` and `ack`, and learns from it. `now_ns` may be up to KW_TICK_NS too early. Returns whether the numbers of the
* connection are translated; only then `numbers` are set.
*
* While the client has not acknowledged an answer that was made here, nothing else may tell it that its request has arrived, or it would not
* ask for the answer again. Only what comes after the answer may: the client acknowledges it at once, and thereby shows what it lacks. */
KW_INLINE int kw_depart(struct kw_connection *c, const struct kw_sending *sending, __u64 now_ns, struct kw_numbers *numbers, __u32 *seq,
			__u32 *ack)
{
	const struct kw_splice *in = &c->numbers.in, *out = &c->numbers.out;
	__u32 end = sending->seq + sending->len + (sending->flags & KW_TCP_FIN ? 1 : 0), made_at = out->at - out->before;
	int is_before, is_after;

	kw_receive(c, sending, now_ns);
	*seq = sending->seq;
	*ack = sending->ack;
	if (!kw_is_spliced(&c->numbers))
		return 0;
	is_before = kw_before(sending->seq, made_at);
	is_after = end != sending->seq && kw_before(made_at, end);
	*seq = kw_outer(out, sending->seq);
	*ack = kw_outer(in, sending->ack);
	if (is_before && is_after) {
		/* Sent again in one piece, what was sent before the answer and what comes after it. The client has the former. While it lacks
		 * the answer, all of it gets numbers from before: it is discarded, and acknowledged with what the client has. */
		*seq = c->is_owed ? out->at - (end - sending->seq) : sending->seq + out->before + out->len;
	}
	if (c->is_owed && !is_after && kw_before(in->at, *ack))
		*ack = in->at;
	*numbers = c->numbers;
	kw_settle(&c->numbers.out, *seq);
	return 1;
}

#endif
