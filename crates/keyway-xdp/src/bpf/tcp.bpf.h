/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The kernel door for TCP.
 *
 * `kw_tcp_in` runs at TC ingress. A segment for the served address and port belongs to a socket of this machine; if the server has
 * enrolled that socket, its storage says what is known of the connection. The segment is answered, or goes to the socket with the numbers that the
 * socket expects. `kw_tcp_out` runs at TC egress and gives what the socket sends the numbers that the client expects.
 *
 * One request, with the client's numbers above and the socket's below:
 *
 *     client            here                                 socket
 *       | seq 100 ack 500 "get a"  ->                          |  expects 100, has sent up to 500
 *       |        <- seq 500 ack 106 "VALUE a…END"              |  (learns nothing)
 *       | seq 106 ack 540 "set b…" ->   seq 100 ack 500 "set b…" -> |
 *       |        <- seq 540 ack 120     <- seq 500 ack 114 "STORED" |
 *
 * When the socket has closed and only its remains answer (TIME_WAIT), `kw_closing` has the numbers.
 */
#ifndef KW_TCP_BPF_H
#define KW_TCP_BPF_H

#include "kernel.h"
#include "skb.h"

#define KW_AF_INET 2

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kw_connection);
} kw_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KW_RESTS);
	__type(key, __u32);
	__type(value, struct kw_rest);
} kw_rests SEC(".maps");

struct kw_peer {
	__u32 address[4];
	__u32 port; /* network byte order */
};

/* Connections with translated numbers that the server's socket has closed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct kw_peer);
	__type(value, struct kw_numbers);
} kw_closing SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kw_work);
} kw_works SEC(".maps");

/* Whether the segment has nothing in its headers, which are in `head`, but what Linux itself writes. */
KW_INLINE int kw_is_plain(struct __sk_buff *skb, const struct kw_scratch *s, const struct kw_found *found, const struct kw_segment *segment,
			  int v6)
{
	const __u8 *ip = s->head + KW_LINK_LEN;

	if (found->is_odd || skb->vlan_present || skb->gso_size)
		return 0;
	if (found->head_len != KW_TCP_LEN && !(found->head_len == KW_TCP_LEN + KW_STAMPS_LEN && segment->is_stamped))
		return 0;
	/* congestion experienced (RFC 3168) */
	if (v6)
		return (ip[1] & 0x30) != 0x30;
	return (ip[1] & 3) != 3 && kw_fold(kw_ip4_sum(ip)) == 0xFFFF;
}

KW_INLINE void kw_peer_of(const struct kw_scratch *s, struct kw_peer *peer, int is_incoming, int v6)
{
	const __u8 *ip = s->head + KW_LINK_LEN;

	if (v6) {
		__builtin_memcpy(peer->address, ip + (is_incoming ? 8 : 24), 16);
	} else {
		peer->address[0] = 0;
		peer->address[1] = 0;
		peer->address[2] = 0xFFFF0000;
		peer->address[3] = kw_quad(ip + (is_incoming ? 12 : 16));
	}
	peer->port = kw_half(s->head + kw_tcp_at(v6) + (is_incoming ? 0 : 2));
}

/* What the socket is doing now. */
KW_INLINE void kw_look(const struct tcp_sock *socket, struct kw_facts *facts)
{
	facts->state = socket->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	facts->received = socket->rcv_nxt;
	facts->sent = socket->snd_nxt;
	facts->written = socket->write_seq;
	facts->mss = socket->mss_cache;
	facts->in_flight = socket->packets_out;
	facts->bytes_received = socket->bytes_received;
	facts->scale = BPF_CORE_READ_BITFIELD(socket, rx_opt.snd_wscale);
}

/* Loads the segment's data into `in`; 0 if a request may be in them. */
static __noinline int kw_load_data(struct __sk_buff *skb, struct kw_scratch *s, __u32 place, __u32 len)
{
	if (len < KW_REPLY_MIN || len > KW_PAYLOAD_MAX)
		return -1;
	return bpf_skb_load_bytes(skb, place, s->in + KW_HEAD, len) ? -1 : 0;
}

/* Keeps the answer in `out`. */
static __noinline int kw_keep(struct kw_connection *c, const struct kw_scratch *s, __u32 len)
{
	if (len < KW_REPLY_MIN || len > KW_PAYLOAD_MAX)
		return -1;
	return kw_move(c->answer, s->out + KW_HEAD, len) ? -1 : 0;
}

/* Takes a piece of the answer that was kept. */
static __noinline int kw_take(struct kw_scratch *s, const struct kw_connection *c, __u32 from, __u32 len)
{
	if (len < KW_REPLY_MIN || len > KW_PIECE || from > KW_PAYLOAD_MAX || from + len > KW_PAYLOAD_MAX)
		return -1;
	return kw_move(s->out + KW_HEAD, c->answer + from, len) ? -1 : 0;
}

/* Whether the segment begins as a request does that may be answered here. */
KW_INLINE int kw_is_request(struct __sk_buff *skb, const struct kw_found *found, __u32 len)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 place = found->tcp_at + found->head_len, word;

	if (len < 4 || len > KW_PAYLOAD_MAX)
		return 0;
	KW_OPAQUE(place);
	place &= 255; /* more than all headers */
	if (KW_OFTEN(data + place + 4 <= end))
		word = kw_quad(data + place);
	else if (bpf_skb_load_bytes(skb, found->tcp_at + found->head_len, &word, 4))
		return 0;
	/* "get " or "gets", "mg " */
	return word == 0x20746567 || word == 0x73746567 || (word & 0xFFFFFF) == 0x20676D;
}

/* Makes the answer to the request in `out`, if there is one: its length, or 0. */
KW_INLINE __u32 kw_tcp_answer(struct __sk_buff *skb, struct kw_scratch *s, const struct kw_found *found, const struct kw_segment *segment,
			      enum kw_checksum *checksum, __u64 now, int v6)
{
	const struct kw_control *control = kw_control();
	struct kw_context context = { .s = s };
	struct kw_peer peer;
	enum kw_verdict verdict;
	__u32 len = segment->len, place = found->tcp_at + found->head_len;

	if (!control || now >= *(volatile const __u64 *)&control->lease_ns) {
		kw_count(KW_SILENT);
		return 0;
	}
	/* What the server set before it renewed the lease is there now. */
	kw_read_barrier();
	if (kw_load_data(skb, s, place, len)) {
		kw_count(KW_ODD_REQUEST);
		return 0;
	}
	s->seed = *(volatile const __u64 *)&control->seed;
	s->now_s = (now + *(volatile const __u64 *)&control->clock_ns) / 1000000000;
	verdict = kw_answer_lines(&context, len);
	if (verdict != KW_HIT) {
		kw_count(verdict);
		return 0;
	}
	if (s->out_end > KW_HEAD + KW_REPLY_MAX) {
		kw_count(KW_TOO_LONG);
		return 0;
	}
	*checksum = kw_tcp_check(s, len, segment->is_stamped, v6);
	if (*checksum == KW_CHECKSUM_BAD) {
		kw_count(KW_ODD_PACKET);
		return 0;
	}
	kw_peer_of(s, &peer, 1, v6);
	if (kw_is_over_rate(peer.address, now)) {
		kw_count(KW_OVER_RATE);
		return 0;
	}
	return s->out_end - KW_HEAD;
}

/* Makes the answer, if the connection is at rest: its length, or 0. Without the lock: only whether an answer is worth making. */
KW_INLINE __u32 kw_tcp_try(struct __sk_buff *skb, struct kw_scratch *s, struct kw_work *work, const struct kw_connection *c,
			   const struct tcp_sock *socket, const struct kw_rest *rest, enum kw_checksum *checksum, __u64 now, int v6)
{
	const struct kw_found *found = &work->found;
	struct kw_segment *segment = &work->segment;
	struct kw_facts *facts = &work->facts;
	__u64 word = *(volatile const __u64 *)&rest->word;

	kw_read_barrier();
	kw_look(socket, facts);
	if (!kw_is_at_rest(c, segment, facts, word)) {
		kw_count(KW_TCP_BUSY);
		return 0;
	}
	if (kw_load_head(skb, s, found, v6))
		return 0;
	segment->is_plain = kw_is_plain(skb, s, found, segment, v6);
	if (!kw_fits(c, segment, facts, 1)) {
		kw_count(KW_ODD_PACKET);
		return 0;
	}
	if (!kw_is_open(c, now)) {
		kw_count(KW_NO_PATH);
		return 0;
	}
	return kw_tcp_answer(skb, s, found, segment, checksum, now, v6);
}

/* Writes the segment in `made`, with the first `len` bytes of `out`, over the packet. */
static __noinline int kw_put(struct __sk_buff *skb, const struct kw_scratch *s, __u32 head_len, __u32 len)
{
	if (head_len < KW_TCP4 + KW_TCP_LEN || head_len > KW_HEADERS || len > KW_PAYLOAD_MAX)
		return -1;
	if (bpf_skb_change_tail(skb, head_len + len, 0) || bpf_skb_store_bytes(skb, 0, s->made, head_len, BPF_F_RECOMPUTE_CSUM))
		return -1;
	if (len < KW_REPLY_MIN)
		return 0;
	return bpf_skb_store_bytes(skb, head_len, s->out + KW_HEAD, len, BPF_F_RECOMPUTE_CSUM) ? -1 : 0;
}

/* Sends the answer, and gives the socket the headers of the segment, if it has to learn something from them. */
KW_INLINE int kw_reply(struct __sk_buff *skb, struct kw_scratch *s, const struct kw_work *work, enum kw_checksum checksum, int v6)
{
	const struct kw_segment *segment = &work->segment;
	const struct kw_plan *plan = &work->plan;
	__u32 head_len = kw_tcp_at(v6) + KW_TCP_LEN + (segment->is_stamped ? KW_STAMPS_LEN : 0), len = plan->reply_len;
	struct kw_made made = {
		.seq = plan->reply_seq,
		.ack = plan->reply_ack,
		.stamp = plan->stamp,
		.window = plan->window,
		.flags = KW_TCP_ACK | KW_TCP_PSH,
		.has_stamps = segment->is_stamped,
		.is_turned = 1,
	};

	if (plan->step != KW_REMIND) {
		made.len = len;
		__builtin_memcpy(s->link, plan->link, 12);
		kw_make(s, &made, checksum, v6);
		/* The client sends a request again whose answer could not be written here. */
		if (kw_put(skb, s, head_len, len))
			return TC_ACT_SHOT;
		if (plan->step == KW_REPLY)
			kw_took(&work->timer, KW_TIMED_TCP);
		if (!plan->tells)
			return bpf_redirect(segment->interface, 0);
		bpf_clone_redirect(skb, segment->interface, 0);
	}
	made = (struct kw_made){
		.seq = plan->seq,
		.ack = plan->ack,
		.window = bpf_htons((__u16)segment->window),
		.flags = KW_TCP_ACK,
		.has_stamps = segment->is_stamped,
	};
	kw_make(s, &made, checksum, v6);
	return kw_put(skb, s, head_len, 0) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* A segment for a socket that the server has enrolled. */
KW_INLINE int kw_tcp_serve(struct __sk_buff *skb, struct kw_work *work, struct kw_connection *c, const struct tcp_sock *socket, int v6)
{
	const struct kw_found *found = &work->found;
	struct kw_segment *segment = &work->segment;
	struct kw_facts *facts = &work->facts;
	struct kw_plan *plan = &work->plan;
	__u32 slot = c->slot, answer_len = 0;
	enum kw_checksum checksum = KW_CHECKSUM_BAD;
	struct kw_scratch *s = 0;
	struct kw_rest *rest = 0;
	/* An answer that goes out once more has the timestamp of the last one. */
	__u64 now = 0;

	/* Nothing to translate, and nothing that has to be remembered. */
	if (!segment->len && !(segment->flags & KW_TCP_FIN) && !segment->is_part && !kw_is_spliced(&c->numbers))
		return TC_ACT_UNSPEC;
	segment->interface = skb->ifindex;
	segment->is_plain = 0;
	if (segment->len && !kw_is_taken(&c->numbers.in, segment)) {
		if (KW_RARE(kw_is_request(skb, found, segment->len))) {
			s = kw_scratch();
			rest = bpf_map_lookup_elem(&kw_rests, &slot);
			if (!s || !rest)
				return TC_ACT_UNSPEC;
			now = kw_clock();
			answer_len = kw_tcp_try(skb, s, work, c, socket, rest, &checksum, now, v6);
		} else {
			kw_count(KW_ODD_REQUEST);
		}
	}
	if (KW_RARE(answer_len && rest)) {
		__u64 word;

		bpf_spin_lock(&c->lock);
		/* First the word: what the server wrote before it published is then in the socket's numbers. */
		word = *(volatile __u64 *)&rest->word;
		kw_read_barrier();
		kw_look(socket, facts);
		kw_arrive(c, segment, facts, word, answer_len, now, plan);
		bpf_spin_unlock(&c->lock);
	} else {
		bpf_spin_lock(&c->lock);
		facts->received = socket->rcv_nxt;
		facts->mss = socket->mss_cache;
		kw_arrive(c, segment, facts, 0, 0, now, plan);
		bpf_spin_unlock(&c->lock);
	}
	if (KW_OFTEN(plan->step == KW_PASS))
		return kw_renumber(skb, work, plan->seq, plan->ack, 0,
				   segment->interface == KW_LOOPBACK && segment->len && kw_is_partial(skb, found, v6)) ?
			       TC_ACT_SHOT :
			       TC_ACT_UNSPEC;
	if (!s) {
		s = kw_scratch();
		if (!s)
			return TC_ACT_SHOT;
	}
	if (plan->step == KW_REPLY) {
		if (kw_keep(c, s, answer_len))
			return TC_ACT_SHOT;
		bpf_spin_lock(&c->lock);
		c->answer_len = answer_len;
		bpf_spin_unlock(&c->lock);
		kw_count_several(KW_TCP_HIT, s->answered);
	} else {
		if (kw_load_head(skb, s, found, v6))
			return TC_ACT_SHOT;
		checksum = kw_tcp_kind(s, found->head_len + found->len, v6);
		if (plan->step == KW_REPEAT && kw_take(s, c, plan->reply_from, plan->reply_len))
			return TC_ACT_SHOT;
		kw_count(plan->step == KW_REPEAT ? KW_TCP_REPEATED : KW_TCP_REMINDED);
	}
	return kw_reply(skb, s, work, checksum, v6);
}

/* A segment for a connection of which the socket has only remains. */
KW_INLINE int kw_tcp_after(struct __sk_buff *skb, struct kw_work *work, int is_incoming, int v6)
{
	const struct kw_segment *segment = &work->segment;
	struct kw_scratch *s = kw_scratch();
	const struct kw_numbers *numbers;
	struct kw_numbers copy;
	struct kw_peer peer;

	if (!s || kw_load_head(skb, s, &work->found, v6))
		return TC_ACT_UNSPEC;
	kw_peer_of(s, &peer, is_incoming, v6);
	numbers = bpf_map_lookup_elem(&kw_closing, &peer);
	if (!numbers)
		return TC_ACT_UNSPEC;
	if (segment->flags & KW_TCP_SYN) {
		/* A new connection from the same port. */
		bpf_map_delete_elem(&kw_closing, &peer);
		return TC_ACT_UNSPEC;
	}
	copy = *numbers;
	if (is_incoming) {
		work->plan.edges = copy.out;
		return kw_renumber(skb, work, kw_inner(&copy.in, segment->seq), kw_inner(&copy.out, segment->ack), 0, 0) ? TC_ACT_SHOT :
															  TC_ACT_UNSPEC;
	}
	work->plan.edges = copy.in;
	return kw_renumber(skb, work, kw_outer(&copy.out, segment->seq), kw_outer(&copy.in, segment->ack), 1, 0) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

KW_INLINE struct kw_work *kw_work(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&kw_works, &key);
}

KW_INLINE int kw_tcp_receive(struct __sk_buff *skb, struct kw_work *work, int v6)
{
	const __u8 *data, *end;
	struct bpf_sock_tuple tuple;
	struct kw_connection *c = 0;
	struct bpf_sock *common;
	struct tcp_sock *socket;
	int action;

	if (kw_tcp_read(skb, work, 1, v6))
		/* No router makes a first part that ends within the header, and its numbers could not be translated. */
		return KW_RARE(work->found.is_part) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (KW_RARE(data + kw_tcp_at(v6) > end))
		return TC_ACT_UNSPEC;
	/* Both ports are one word of the segment. */
	if (v6) {
		__builtin_memcpy(tuple.ipv6.saddr, data + KW_LINK_LEN + 8, 32);
		__builtin_memcpy(&tuple.ipv6.sport, &work->segment.ports, 4);
		common = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, data + KW_LINK_LEN + 12, 8);
		__builtin_memcpy(&tuple.ipv4.sport, &work->segment.ports, 4);
		common = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (KW_RARE(!common))
		return kw_tcp_after(skb, work, 1, v6);
	socket = bpf_skc_to_tcp_sock(common);
	if (socket)
		c = bpf_sk_storage_get(&kw_connections, socket, 0, 0);
	/* An entry that is there keeps the server from enrolling the connection. */
	if (KW_RARE(work->segment.is_part && socket && !c && socket->inet_conn.icsk_inet.sk.__sk_common.skc_state == KW_TCP_ESTABLISHED))
		c = bpf_sk_storage_get(&kw_connections, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (KW_OFTEN(c))
		action = kw_tcp_serve(skb, work, c, socket, v6);
	else if (KW_OFTEN(socket && !(work->segment.flags & KW_TCP_SYN)))
		action = TC_ACT_UNSPEC;
	else
		action = kw_tcp_after(skb, work, 1, v6);
	bpf_sk_release(common);
	return action;
}

KW_INLINE int kw_tcp_send(struct __sk_buff *skb, struct kw_work *work, int v6)
{
	const __u8 *data, *end;
	struct kw_segment *segment;
	struct kw_connection *c;
	struct kw_sending sending;
	struct kw_numbers numbers = {};
	struct bpf_sock *socket = skb->sk;
	struct kw_scratch *s;
	struct kw_peer peer;
	__u32 seq, ack;
	__u64 now;
	int is_translated;

	if (socket)
		socket = bpf_sk_fullsock(socket);
	/* The kernel's own socket, which sends for those that have gone, is a raw one. */
	if (KW_RARE(!socket || socket->type != 1 /* SOCK_STREAM */))
		return kw_tcp_read(skb, work, 0, v6) ? TC_ACT_UNSPEC : kw_tcp_after(skb, work, 0, v6);
	c = bpf_sk_storage_get(&kw_connections, socket, 0, 0);
	if (!c || kw_tcp_read(skb, work, 0, v6))
		return TC_ACT_UNSPEC;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (data + 12 > end)
		return TC_ACT_UNSPEC;
	segment = &work->segment;
	now = bpf_ktime_get_coarse_ns();
	sending = (struct kw_sending){
		.seq = segment->seq,
		.ack = segment->ack,
		.stamp = bpf_ntohl(segment->stamp),
		.interface = skb->ifindex,
		.len = work->found.len,
		.window = bpf_htons((__u16)segment->window),
		.flags = segment->flags,
		.is_stamped = segment->is_stamped,
	};
	__builtin_memcpy(sending.link, data, 12);
	bpf_spin_lock(&c->lock);
	is_translated = kw_depart(c, &sending, now, &numbers, &seq, &ack);
	bpf_spin_unlock(&c->lock);
	if (!is_translated)
		return TC_ACT_UNSPEC;
	if (KW_RARE(segment->flags & KW_TCP_FIN)) {
		s = kw_scratch();
		if (s && !kw_load_head(skb, s, &work->found, v6)) {
			kw_peer_of(s, &peer, 0, v6);
			bpf_map_update_elem(&kw_closing, &peer, &numbers, BPF_ANY);
		}
	}
	work->plan.edges = numbers.in;
	return kw_renumber(skb, work, seq, ack, 1, kw_is_partial(skb, &work->found, v6)) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* A message about a segment, which quotes the client's number: the socket would take it for a forged one. It gets its own number, and learns,
 * for example, that the path is too narrow for what it sends, and for what is answered here. */
static __noinline int kw_tcp_told(struct __sk_buff *skb)
{
	struct kw_scratch *s = kw_scratch();
	struct bpf_sock_tuple tuple = {};
	struct kw_quote quote = {};
	struct kw_connection *c = 0;
	struct bpf_sock *common;
	struct tcp_sock *socket;
	__u32 seq;

	if (!s || kw_find_quote(skb, s, &quote))
		return TC_ACT_UNSPEC;
	if (s->options[0] >> 4 == 6) {
		__builtin_memcpy(tuple.ipv6.saddr, s->options + 24, 16);
		__builtin_memcpy(tuple.ipv6.daddr, s->options + 8, 16);
		__builtin_memcpy(&tuple.ipv6.sport, &quote.ports, 4);
		common = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, s->options + 16, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, s->options + 12, 4);
		__builtin_memcpy(&tuple.ipv4.sport, &quote.ports, 4);
		common = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!common)
		return TC_ACT_UNSPEC;
	seq = quote.seq;
	socket = bpf_skc_to_tcp_sock(common);
	if (socket)
		c = bpf_sk_storage_get(&kw_connections, socket, 0, 0);
	if (c) {
		bpf_spin_lock(&c->lock);
		seq = kw_inner(&c->numbers.out, seq);
		bpf_spin_unlock(&c->lock);
	}
	bpf_sk_release(common);
	return kw_requote(skb, &quote, seq) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Runs the program on a segment, and measures how long one in KW_TIMED_ONE_IN takes. */
KW_INLINE int kw_tcp_run(struct __sk_buff *skb, int is_incoming, int v6)
{
	struct kw_work *work = kw_work();
	int action;

	if (!work)
		return TC_ACT_UNSPEC;
	kw_begin(&work->timer);
	action = is_incoming ? kw_tcp_receive(skb, work, v6) : kw_tcp_send(skb, work, v6);
	kw_took(&work->timer, KW_TIMED_TCP_RUN);
	return action;
}

SEC("tc")
int kw_tcp_in(struct __sk_buff *skb)
{
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		return TC_ACT_UNSPEC;
	switch (kw_tcp_family(skb, 1)) {
	case 4:
		return kw_tcp_run(skb, 1, 0);
	case 6:
		return kw_tcp_run(skb, 1, 1);
	case KW_ABOUT:
		return kw_tcp_told(skb);
	default:
		return KW_RARE(skb->len < KW_TCP4 + KW_TCP_LEN) && kw_is_stub(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
	}
}

SEC("tc")
int kw_tcp_out(struct __sk_buff *skb)
{
	/* What arrived by an interface was not sent by a socket here: it is forwarded, or `kw_tcp_in` has made it. */
	if (skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	switch (kw_tcp_family(skb, 0)) {
	case 4:
		return kw_tcp_run(skb, 0, 0);
	case 6:
		return kw_tcp_run(skb, 0, 1);
	default:
		return TC_ACT_UNSPEC;
	}
}

/* The kernel's structures for iterators. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	void *sk;
	void *value;
} __attribute__((preserve_access_index));

/* Lists the connections of `kw_connections` whose numbers are translated. */
SEC("iter/bpf_sk_storage_map")
int kw_translated(struct bpf_iter__bpf_sk_storage_map *iteration)
{
	struct seq_file *out = iteration->meta->seq;
	struct kw_connection *c = iteration->value;
	const struct sock *socket = iteration->sk;
	struct kw_ends ends = {};

	if (!c || !socket || !kw_is_spliced(&c->numbers))
		return 0;
	ends.interface = c->interface;
	ends.family = socket->__sk_common.skc_family;
	ends.local_port = bpf_htons(socket->__sk_common.skc_num);
	ends.remote_port = socket->__sk_common.skc_dport;
	if (ends.family == KW_AF_INET) {
		ends.local[0] = socket->__sk_common.skc_rcv_saddr;
		ends.remote[0] = socket->__sk_common.skc_daddr;
	} else {
		BPF_CORE_READ_INTO(&ends.local, socket, __sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32);
		BPF_CORE_READ_INTO(&ends.remote, socket, __sk_common.skc_v6_daddr.in6_u.u6_addr32);
	}
	bpf_seq_write(out, &ends, sizeof(ends));
	return 0;
}

#endif
