/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The program's headers on the host: the same reading, hashing and answering, over memory that a test provides; and the same decisions on
 * TCP segments, of which a test gives and gets the numbers. */
#include "env.h"

#include <stddef.h>

/* The counterparts of the kernel's maps. */
struct kw_host {
	const struct kw_bucket *index;
	const __u8 *pages;
	const __u64 *stripes;
	const struct kw_control *control;
	const struct kw_config *config;
	__u64 now_ns;
	__u32 sources_over_rate;
	__u32 no_path;
};

static _Thread_local const struct kw_host *host;

KW_INLINE const volatile struct kw_config *kw_config(void)
{
	return host->config;
}

KW_INLINE const struct kw_bucket *kw_bucket(__u64 hash)
{
	return host->index + ((__u32)hash & host->config->bucket_mask);
}

KW_INLINE const __u8 *kw_page(__u32 page)
{
	return page < host->config->pages ? host->pages + (size_t)page * KW_PAGE : NULL;
}

KW_INLINE const __u64 *kw_stripe(__u32 stripe)
{
	return stripe <= KW_FLUSH ? host->stripes + stripe : NULL;
}

KW_INLINE const struct kw_control *kw_control(void)
{
	return host->control;
}

KW_INLINE __u64 kw_clock(void)
{
	return host->now_ns;
}

KW_INLINE __u32 kw_sum(__u8 *from, __u32 len, __u32 sum)
{
	__u64 wide = sum;
	__u32 i;

	from[len] = 0;
	for (i = 0; i < len; i += 2)
		wide += from[i] | from[i + 1] << 8;
	while (wide >> 32)
		wide = (wide & 0xFFFFFFFF) + (wide >> 32);
	return wide;
}

KW_INLINE int kw_is_over_rate(const __u32 source[4], __u64 now)
{
	(void)source;
	(void)now;
	return host->sources_over_rate;
}

KW_INLINE int kw_has_path(struct kw_scratch *s, const __u8 *frame, const __u32 source[4], __u64 now)
{
	(void)source;
	(void)now;
	kw_turn_link(s, frame);
	return !host->no_path;
}

/* A packet as the kernel has it: the bytes up to `data_end` lie together, the others elsewhere. */
struct __sk_buff {
	unsigned long data;
	unsigned long data_end;
	__u32 len;
	__u32 gso_size;
	/* hardware will write the checksum (CHECKSUM_PARTIAL) */
	__u32 is_partial;
};

static int bpf_skb_pull_data(struct __sk_buff *skb, __u32 len)
{
	if (len > skb->len)
		return -1;
	if (skb->data + len > skb->data_end)
		skb->data_end = skb->data + len;
	return 0;
}

static int bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 at, void *to, __u32 len)
{
	if (at > skb->len || len > skb->len - at)
		return -1;
	memcpy(to, (const __u8 *)skb->data + at, len);
	return 0;
}

static int bpf_skb_store_bytes(struct __sk_buff *skb, __u32 at, const void *from, __u32 len, __u64 flags)
{
	(void)flags;
	if (at > skb->len || len > skb->len - at)
		return -1;
	memcpy((__u8 *)skb->data + at, from, len);
	return 0;
}

/* `to` is added to the sum; a field that has the pseudo header's sum only does not change (Linux, inet_proto_csum_replace_by_diff()). */
static int bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	__u8 *field = (__u8 *)skb->data + at;
	__u16 sum;
	__u64 wide;

	(void)from;
	(void)flags;
	if (at + 2 > skb->len)
		return -1;
	memcpy(&sum, field, 2);
	wide = (__u64)(__u16)~sum + (__u32)to;
	while (wide >> 16)
		wide = (wide & 0xFFFF) + (wide >> 16);
	sum = ~wide;
	if (!skb->is_partial)
		memcpy(field, &sum, 2);
	return 0;
}

static __s64 bpf_csum_diff(const __be32 *from, __u32 from_len, const __be32 *to, __u32 to_len, __u32 seed)
{
	__u64 sum = seed;
	__u32 i;

	if (from_len % 4 || to_len % 4)
		return -1;
	for (i = 0; i < from_len / 4; i++)
		sum += (__u32)~from[i];
	for (i = 0; i < to_len / 4; i++)
		sum += to[i];
	while (sum >> 32)
		sum = (sum & 0xFFFFFFFF) + (sum >> 32);
	return sum;
}

static _Thread_local struct kw_scratch *scratch;

KW_INLINE struct kw_scratch *kw_scratch(void)
{
	return scratch;
}

KW_INLINE void kw_count(enum kw_verdict verdict)
{
	(void)verdict;
}

#include "packet.h"
#include "skb.h"
#include "times.h"

/* The bucket of a time in nanoseconds. */
__u32 kw_host_time_bucket(__u64 ns)
{
	return kw_time_bucket(ns);
}

size_t kw_host_scratch_size(void)
{
	return sizeof(struct kw_scratch);
}

/* The hash of a key of up to 250 bytes. */
__u64 kw_host_hash(struct kw_scratch *s, __u64 seed, const __u8 *key, __u32 len)
{
	struct kw_context context = { .s = s };

	memcpy(s->in + KW_HEAD, key, len);
	s->at = KW_HEAD;
	s->token_end = KW_HEAD + len;
	kw_hash(&context, seed);
	return s->hash;
}

/* Decides on a frame, and returns where its answer is. */
int kw_host_decide(const struct kw_host *with, struct kw_scratch *s, const __u8 *frame, __u32 len, int v6, const __u8 **answer,
		   __u32 *answer_len)
{
	__u32 start = v6 ? KW_START6 : KW_START4;
	int verdict;

	host = with;
	if (len < (v6 ? KW_FRAME6 : KW_FRAME4) || len > KW_BUFFER - KW_HEAD)
		return KW_ODD_PACKET;
	memcpy(s->in + start, frame, len);
	verdict = kw_decide(s, len, v6);
	*answer = s->out + start;
	*answer_len = verdict == KW_HIT ? s->out_end - start : 0;
	return verdict;
}

size_t kw_host_connection_size(void)
{
	return sizeof(struct kw_connection);
}

/* The decision, and what goes out and to the socket. */
struct kw_decision {
	__u32 step;
	__u32 seq;
	__u32 ack;
	__u32 tells;
	__u32 reply_seq;
	__u32 reply_ack;
	__u32 reply_len;
};

/* Decides on a segment whose headers, from the TCP header on, are `header`. */
void kw_host_arrive(struct kw_connection *c, const __u8 *header, __u32 len, int is_part, const __u32 facts[7], __u64 bytes_received, __u64 word,
		    __u32 answer_len, __u64 now_ns, struct kw_decision *decision)
{
	struct kw_segment segment = { .interface = 1, .is_plain = 1, .len = len };
	struct kw_facts known = {
		.state = facts[0],
		.received = facts[1],
		.sent = facts[2],
		.written = facts[3],
		.mss = facts[4],
		.in_flight = facts[5],
		.scale = facts[6],
		.bytes_received = bytes_received,
	};
	struct kw_plan plan = { 0 };

	kw_read_segment(header, &segment);
	segment.is_part = is_part != 0;
	kw_arrive(c, &segment, &known, word, answer_len, now_ns, &plan);
	*decision = (struct kw_decision){ plan.step, plan.seq, plan.ack, plan.tells, plan.reply_seq, plan.reply_ack, plan.reply_len };
}

/* The answer to the last request is written. */
void kw_host_answered(struct kw_connection *c)
{
	c->answer_len = c->numbers.out.len;
}

/* Translates a segment that the socket sends: `numbers` are its sequence number and its acknowledgement. */
void kw_host_depart(struct kw_connection *c, __u32 len, __u8 flags, __u64 now_ns, __u32 numbers[2])
{
	struct kw_sending sending = { .seq = numbers[0], .ack = numbers[1], .len = len, .flags = flags, .interface = 1 };
	struct kw_numbers unused;

	kw_depart(c, &sending, now_ns, &unused, numbers, numbers + 1);
}

/* Translates the selective acknowledgements in `len` bytes of options, up to KW_OPTIONS. */
void kw_host_options(const struct kw_connection *c, struct kw_scratch *s, __u8 *options, __u32 len, int to_client)
{
	struct kw_context context = { .s = s };

	memcpy(s->options, options, len);
	kw_translate_options(&context, len, to_client ? &c->numbers.in : &c->numbers.out, to_client);
	memcpy(options, s->options, len);
}

/* The checksum of the TCP segment in a plain frame, and the frame of the answer `out` to it; its length, or 0 if the checksum is wrong. */
__u32 kw_host_make(struct kw_scratch *s, const __u8 *frame, __u32 len, const __u32 numbers[3], const __u8 *answer, __u32 answer_len, int v6,
		   __u8 *made)
{
	struct kw_segment segment = { 0 };
	enum kw_checksum checksum;
	__u32 head_len;

	memcpy(s->head, frame, KW_HEADERS);
	kw_read_segment(s->head + kw_tcp_at(v6), &segment);
	head_len = kw_tcp_at(v6) + KW_TCP_LEN + (segment.is_stamped ? KW_STAMPS_LEN : 0);
	memcpy(s->in + KW_HEAD, frame + head_len, len - head_len);
	memcpy(s->out + KW_HEAD, answer, answer_len);
	checksum = kw_tcp_check(s, len - head_len, segment.is_stamped, v6);
	if (checksum == KW_CHECKSUM_BAD)
		return 0;
	kw_turn_link(s, frame);
	kw_make(s,
		&(struct kw_made){
			.seq = numbers[0],
			.ack = numbers[1],
			.stamp = numbers[2],
			.len = answer_len,
			.window = 0x1234,
			.flags = KW_TCP_ACK | KW_TCP_PSH,
			.has_stamps = segment.is_stamped,
			.is_turned = 1,
		},
		checksum, v6);
	memcpy(made, s->made, head_len);
	memcpy(made + head_len, answer, answer_len);
	return head_len + answer_len;
}

/* What is found of a segment in a packet. */
struct kw_reading {
	__u32 seq;
	__u32 ack;
	__u32 len;
	__u32 window;
	__u32 ports; /* network byte order */
	__u32 stamp; /* network byte order */
	__u32 flags;
	__u32 is_stamped;
	__u32 is_odd;
};

/* Reads the headers of a packet of `len` bytes, of which the first `linear` lie together, and gives it the numbers of the other end. Returns
 * the family of a packet to or from the served port; -1 if it is no TCP segment after all, -2 if it could not be changed. */
int kw_host_translate(const struct kw_connection *c, struct kw_scratch *s, const struct kw_config *config, __u8 *packet, __u32 len,
		      __u32 linear, __u32 gso_size, int is_partial, int is_incoming, int from_socket, struct kw_reading *reading)
{
	const struct kw_splice *seqs = is_incoming ? &c->numbers.in : &c->numbers.out, *acks = is_incoming ? &c->numbers.out : &c->numbers.in;
	struct kw_host with = { .config = config };
	struct __sk_buff skb = {
		.data = (unsigned long)packet,
		.data_end = (unsigned long)packet + linear,
		.len = len,
		.gso_size = gso_size,
		.is_partial = is_partial,
	};
	struct kw_work work = { 0 };
	const struct kw_segment *segment = &work.segment;
	__u32 seq, ack;
	int family;

	host = &with;
	scratch = s;
	family = kw_tcp_family(&skb, is_incoming);
	if (family != 4 && family != 6)
		return 0;
	if (kw_tcp_read(&skb, &work, is_incoming, family == 6))
		return -1;
	*reading = (struct kw_reading){ segment->seq,	segment->ack,	segment->len,	     segment->window,	  segment->ports,
					segment->stamp, segment->flags, segment->is_stamped, work.found.is_odd };
	seq = is_incoming ? kw_inner(seqs, segment->seq) : kw_outer(seqs, segment->seq);
	ack = is_incoming ? kw_inner(acks, segment->ack) : kw_outer(acks, segment->ack);
	work.plan.edges = *acks;
	return kw_renumber(&skb, &work, seq, ack, !is_incoming, from_socket && kw_is_partial(&skb, &work.found, family == 6)) ? -2 : family;
}
