/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * TCP segments in packets as the kernel has them: whether one is to or from the served port, where its headers are, and giving it other
 * numbers. What is changed is changed in place.
 *
 * The host has the kernel's functions for packets in a form of its own (`host.c`).
 */
#ifndef KW_SKB_H
#define KW_SKB_H

#include <linux/if_ether.h>

#include "segment.h"

/* Where a packet's headers are. */
struct kw_found {
	__u32 tcp_at;   /* in the packet */
	__u32 head_len; /* of TCP, with options */
	__u32 len;      /* of the data */
	__u32 is_odd;   /* IP options, or a part of a fragmented packet: never answered, and its headers are in `head` */
	__u32 is_part;  /* the first part of a fragmented packet */
};

/* Per-CPU memory of one segment, beside `kw_scratches`: a program's stack is small. */
struct kw_work {
	struct kw_found found;
	struct kw_segment segment;
	struct kw_facts facts;
	struct kw_plan plan;
	struct kw_timer timer;
};

KW_INLINE int kw_is_extension(__u8 kind)
{
	return kind == KW_HOP_BY_HOP || kind == KW_ROUTING || kind == KW_FRAGMENT || kind == KW_DESTINATION;
}

/* Whether the packet, which is shorter than IPv4's and TCP's headers, is the first part of a TCP segment to the served port. Linux drops those
 * of IPv6. */
static __noinline int kw_is_stub(struct __sk_buff *skb)
{
	const volatile struct kw_config *config = kw_config();
	__u8 head[KW_TCP4 - 12]; /* from the EtherType on */
	__u16 port;

	if (bpf_skb_load_bytes(skb, 12, head, sizeof(head)) || kw_half(head) != bpf_htons(ETH_P_IP) || head[11] != KW_PROTOCOL_TCP)
		return 0;
	if ((kw_half(head + 8) & bpf_htons(0x3FFF)) != bpf_htons(0x2000) || !config->address4 || kw_quad(head + 18) != config->address4)
		return 0;
	return !bpf_skb_load_bytes(skb, KW_LINK_LEN + (head[2] & 15) * 4 + 2, &port, 2) && port == config->tcp_port;
}

/* An ICMP message about a packet that was sent from the served address and port, which it quotes (RFC 792, RFC 4443). */
struct kw_quote {
	__u32 icmp_at;
	__u32 seq_at; /* of the quoted segment's number */
	__u32 seq;
	__u32 ports; /* of the quoted segment, swapped: as if it had been received */
};

/* Finds the quoted packet; its addresses, swapped, are in `options`: target first. 0 if there is one. */
static __noinline int kw_find_quote(struct __sk_buff *skb, struct kw_scratch *s, struct kw_quote *quote)
{
	const volatile struct kw_config *config = kw_config();
	__u8 *head;
	__u8 kind[2];
	__u32 at;
	int v6;

	if (!s || !quote || bpf_skb_load_bytes(skb, 12, kind, 2))
		return -1;
	v6 = kw_half(kind) == bpf_htons(ETH_P_IPV6);
	at = KW_LINK_LEN + (v6 ? 40 : 20);
	quote->icmp_at = at;
	if (bpf_skb_load_bytes(skb, at, kind, 2))
		return -1;
	/* Destination unreachable, which is also "too big" of IPv4, source quench, time exceeded, parameter problem. */
	if (v6 ? kind[0] < 1 || kind[0] > 4 : kind[0] != 3 && kind[0] != 4 && kind[0] != 11 && kind[0] != 12)
		return -1;
	at += 8;
	head = s->options;
	if (v6) {
		if (bpf_skb_load_bytes(skb, at, head, 48))
			return -1;
		if (head[0] >> 4 != 6 || head[6] != KW_PROTOCOL_TCP || kw_half(head + 40) != config->tcp_port)
			return -1;
		if (kw_quad(head + 8) != config->address6[0] || kw_quad(head + 12) != config->address6[1] ||
		    kw_quad(head + 16) != config->address6[2] || kw_quad(head + 20) != config->address6[3])
			return -1;
		quote->seq_at = at + 44;
		quote->seq = bpf_ntohl(kw_quad(head + 44));
		quote->ports = kw_half(head + 42) | (__u32)kw_half(head + 40) << 16;
	} else {
		if (bpf_skb_load_bytes(skb, at, head, 28))
			return -1;
		if (head[0] != 0x45 || kw_half(head + 6) & bpf_htons(0x1FFF) || head[9] != KW_PROTOCOL_TCP ||
		    kw_half(head + 20) != config->tcp_port || kw_quad(head + 12) != config->address4)
			return -1;
		quote->seq_at = at + 24;
		quote->seq = bpf_ntohl(kw_quad(head + 24));
		quote->ports = kw_half(head + 22) | (__u32)kw_half(head + 20) << 16;
	}
	return 0;
}

/* Gives the quoted segment this number. */
KW_INLINE int kw_requote(struct __sk_buff *skb, const struct kw_quote *quote, __u32 seq)
{
	__u32 word = bpf_htonl(seq);
	__u64 differs = (__u64)word + (__u32)~bpf_htonl(quote->seq);

	if (seq == quote->seq)
		return 0;
	differs = (differs & 0xFFFFFFFF) + (differs >> 32);
	bpf_l4_csum_replace(skb, quote->icmp_at + 2, 0, differs, 0);
	return bpf_skb_store_bytes(skb, quote->seq_at, &word, 4, 0) ? -1 : 0;
}

/* What kw_tcp_family() returns for an ICMP message to the served address. */
#define KW_ABOUT 1

/* Whether the packet is TCP and concerns the served address and port: 4, 6, or 0; or KW_ABOUT. Others must cost little. */
KW_INLINE int kw_tcp_family(struct __sk_buff *skb, int is_incoming)
{
	const volatile struct kw_config *config = kw_config();
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 port_at;
	int family;

	if (KW_RARE(data + KW_TCP4 + KW_TCP_LEN > end)) {
		if (skb->len < KW_TCP4 + KW_TCP_LEN || bpf_skb_pull_data(skb, KW_TCP4 + KW_TCP_LEN))
			return 0;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + KW_TCP4 + KW_TCP_LEN > end)
			return 0;
	}
	if (kw_half(data + 12) == bpf_htons(ETH_P_IP)) {
		if (!config->address4 || kw_quad(data + KW_LINK_LEN + (is_incoming ? 16 : 12)) != config->address4)
			return 0;
		if (data[23] != KW_PROTOCOL_TCP)
			return is_incoming && data[23] == KW_PROTOCOL_ICMP && data[14] == 0x45 ? KW_ABOUT : 0;
		port_at = KW_LINK_LEN + (data[14] & 15) * 4 + (is_incoming ? 2 : 0);
		if (KW_OFTEN(data[14] == 0x45))
			return kw_half(data + KW_TCP4 + (is_incoming ? 2 : 0)) == config->tcp_port ? 4 : 0;
		/* With options; the port is looked at later. */
		return port_at > KW_TCP4 ? 4 : 0;
	}
	if (kw_half(data + 12) != bpf_htons(ETH_P_IPV6) || !config->address6[3])
		return 0;
	if (KW_RARE(data + KW_TCP6 + KW_TCP_LEN > end)) {
		if (skb->len < KW_TCP6 + KW_TCP_LEN || bpf_skb_pull_data(skb, KW_TCP6 + KW_TCP_LEN))
			return 0;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + KW_TCP6 + KW_TCP_LEN > end)
			return 0;
	}
	data += KW_LINK_LEN;
	/* Behind other headers the port is looked at later. */
	if (data[6] == KW_PROTOCOL_TCP) {
		if (kw_half(data + 40 + (is_incoming ? 2 : 0)) != config->tcp_port)
			return 0;
	} else if (!kw_is_extension(data[6]) && !(is_incoming && data[6] == KW_PROTOCOL_ICMP6)) {
		return 0;
	}
	family = data[6] == KW_PROTOCOL_ICMP6 ? KW_ABOUT : 6;
	data += is_incoming ? 24 : 8;
	return kw_quad(data) == config->address6[0] && kw_quad(data + 4) == config->address6[1] && kw_quad(data + 8) == config->address6[2] &&
	       kw_quad(data + 12) == config->address6[3] ? family : 0;
}

#define KW_IS_PART 0x10000

/* How long IPv6's headers are before TCP, and KW_IS_PART, of the first part of a fragmented packet; -1 if there is no TCP header. */
static __noinline int kw_ip6_len(struct __sk_buff *skb)
{
	struct {
		__u8 next;
		__u8 len;
		__u16 offset; /* of a part, in network byte order; the last bit: there are more */
	} head;
	__u32 at = KW_LINK_LEN + 40, i;
	int part = 0;
	__u8 kind;

	if (bpf_skb_load_bytes(skb, KW_LINK_LEN + 6, &kind, 1))
		return -1;
#pragma clang loop unroll(disable)
	for (i = 0; i <= KW_EXTENSIONS_MAX; i++) {
		if (kind == KW_PROTOCOL_TCP)
			return (at - KW_LINK_LEN) | part;
		if (!kw_is_extension(kind) || bpf_skb_load_bytes(skb, at, &head, 4))
			return -1;
		if (kind == KW_FRAGMENT) {
			if (head.offset & bpf_htons(0xFFF8))
				return -1;
			if (head.offset & bpf_htons(1))
				part = KW_IS_PART;
			at += 8;
		} else {
			at += (head.len + 1) * 8;
		}
		kind = head.next;
	}
	return -1;
}

/* Reads the headers of a packet that has IP options, or has them elsewhere, into `head`; 0 if they are a TCP segment's. */
static __noinline int kw_tcp_open(struct __sk_buff *skb, struct kw_scratch *s, struct kw_work *work, int is_incoming, int v6)
{
	struct kw_found *found;
	const __u8 *tcp;
	__u32 ip_len, len, is_part;

	if (!s || !work)
		return -1;
	found = &work->found;
	tcp = s->head + kw_tcp_at(v6);
	if (bpf_skb_load_bytes(skb, 0, s->head, v6 ? KW_TCP6 + KW_TCP_LEN : KW_TCP4 + KW_TCP_LEN))
		return -1;
	if (v6) {
		int found_len = kw_ip6_len(skb);

		if (found_len < 0)
			return -1;
		is_part = found_len & KW_IS_PART;
		ip_len = found_len & (KW_IS_PART - 1);
		len = bpf_ntohs(kw_half(s->head + KW_LINK_LEN + 4)) + 40;
		if (ip_len != 40 && bpf_skb_load_bytes(skb, KW_LINK_LEN + ip_len, s->head + KW_TCP6, KW_TCP_LEN))
			return -1;
	} else {
		const __u8 *ip = s->head + KW_LINK_LEN;

		ip_len = (ip[0] & 15) * 4;
		len = bpf_ntohs(kw_half(ip + 2));
		is_part = kw_half(ip + 6) & bpf_htons(0x2000);
		if (ip[0] >> 4 != 4 || ip_len < 20 || kw_half(ip + 6) & bpf_htons(0x1FFF))
			return -1;
		if (ip_len != 20 && bpf_skb_load_bytes(skb, KW_LINK_LEN + ip_len, s->head + KW_TCP4, KW_TCP_LEN))
			return -1;
	}
	if (kw_half(tcp + (is_incoming ? 2 : 0)) != kw_config()->tcp_port)
		return -1;
	found->is_odd = ip_len != (v6 ? 40 : 20) || (!v6 && kw_half(s->head + KW_LINK_LEN + 6) & ~bpf_htons(0x4000) & 0xFFFF);
	found->is_part = is_part != 0;
	found->tcp_at = KW_LINK_LEN + ip_len;
	found->head_len = (tcp[12] >> 4) * 4;
	/* What is read as timestamps. */
	if (found->head_len >= KW_TCP_LEN + KW_STAMPS_LEN &&
	    bpf_skb_load_bytes(skb, found->tcp_at + KW_TCP_LEN, s->head + (v6 ? KW_TCP6 : KW_TCP4) + KW_TCP_LEN, KW_STAMPS_LEN))
		return -1;
	found->len = len;
	return 0;
}

/* The length of the segment's data, if its IP packet has `len` bytes; 0 if it is possible. */
KW_INLINE int kw_measure(struct __sk_buff *skb, struct kw_work *work, __u32 len)
{
	struct kw_found *found = &work->found;
	__u32 begin = found->tcp_at - KW_LINK_LEN + found->head_len;

	/* Several segments in one packet may be longer than the IP header can say; a short frame may be padded. */
	if (skb->gso_size)
		len = skb->len - KW_LINK_LEN;
	if (found->head_len < KW_TCP_LEN || begin > len || KW_LINK_LEN + len > skb->len)
		return -1;
	found->len = len - begin;
	work->segment.len = found->len;
	return 0;
}

/* Reads the packet's headers; 0 if they are a TCP segment's. The usual ones are read where they are. A first part that ends within TCP's header
 * is no segment's, and `is_part` is set. */
KW_INLINE int kw_tcp_read(struct __sk_buff *skb, struct kw_work *work, int is_incoming, int v6)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *ip = data + KW_LINK_LEN, *tcp = data + kw_tcp_at(v6);
	struct kw_segment *segment = &work->segment;
	struct kw_found *found = &work->found;
	struct kw_scratch *s;

	found->is_part = 0;
	segment->is_part = 0;
	if (tcp + KW_TCP_LEN > end)
		return -1;
	if (KW_OFTEN(v6 ? ip[6] == KW_PROTOCOL_TCP : ip[0] == 0x45 && !(kw_half(ip + 6) & ~bpf_htons(0x4000) & 0xFFFF))) {
		__u32 len = v6 ? bpf_ntohs(kw_half(ip + 4)) + 40u : bpf_ntohs(kw_half(ip + 2));

		found->is_odd = 0;
		found->tcp_at = kw_tcp_at(v6);
		found->head_len = (tcp[12] >> 4) * 4;
		if (KW_OFTEN(tcp + KW_TCP_LEN + KW_STAMPS_LEN <= end)) {
			kw_read_segment(tcp, segment);
			return kw_measure(skb, work, len);
		}
		if (found->head_len < KW_TCP_LEN + KW_STAMPS_LEN) {
			kw_read_numbers(tcp, segment);
			segment->is_stamped = 0;
			return kw_measure(skb, work, len);
		}
	}
	s = kw_scratch();
	if (!s || kw_tcp_open(skb, s, work, is_incoming, v6))
		return -1;
	kw_read_segment(s->head + kw_tcp_at(v6), segment);
	segment->is_part = found->is_part;
	return kw_measure(skb, work, found->len);
}

/* Loads the packet's headers into `head`, as if there were no IP options. */
KW_INLINE int kw_load_head(struct __sk_buff *skb, struct kw_scratch *s, const struct kw_found *found, int v6)
{
	if (found->is_odd)
		return 0;
	if (found->head_len >= KW_TCP_LEN + KW_STAMPS_LEN)
		return bpf_skb_load_bytes(skb, 0, s->head, kw_tcp_at(v6) + KW_TCP_LEN + KW_STAMPS_LEN) ? -1 : 0;
	return bpf_skb_load_bytes(skb, 0, s->head, kw_tcp_at(v6) + KW_TCP_LEN) ? -1 : 0;
}

/* Helpers with variable lengths are called in functions of their own: there a length stays in the register that was compared, which the
* verifier of Linux 6.1 needs. */

/* Loads `len` bytes of TCP options. */
static __noinline int kw_load_options(struct __sk_buff *skb, struct kw_scratch *s, __u32 place, __u32 len)
{
	if (len < 4 || len > KW_OPTIONS)
		return -1;
	return bpf_skb_load_bytes(skb, place, s->options, len) ? -1 : 0;
}

/* Stores them. */
static __noinline int kw_store_options(struct __sk_buff *skb, const struct kw_scratch *s, __u32 place, __u32 len)
{
	if (len < 4 || len > KW_OPTIONS)
		return -1;
	return bpf_skb_store_bytes(skb, place, s->options, len, 0) ? -1 : 0;
}

/* Translates its selective acknowledgements, or other options that are not timestamps alone. */
static __noinline int kw_renumber_options(struct __sk_buff *skb, struct kw_work *work, int to_client)
{
	struct kw_scratch *s = kw_scratch();
	struct kw_context context = { .s = s };
	__u32 place, len;
	__s64 differs;

	if (!work || !s)
		return -1;
	place = work->found.tcp_at;
	len = work->found.head_len - KW_TCP_LEN;
	if (kw_load_options(skb, s, place + KW_TCP_LEN, len))
		return 0;
	__builtin_memcpy(s->options_before, s->options, KW_OPTIONS);
	kw_translate_options(&context, len, &work->plan.edges, to_client);
	KW_OPAQUE(len);
	len &= 60;
	differs = bpf_csum_diff((__be32 *)s->options_before, len, (__be32 *)s->options, len, 0);
	if (differs < 0)
		return -1;
	bpf_l4_csum_replace(skb, place + 16, 0, differs, 0);
	return kw_store_options(skb, s, place + KW_TCP_LEN, len);
}

/* Whether the field of the checksum has the pseudo header's sum only: hardware will write it, or nothing on this machine reads it. One in 65536
* complete checksums looks the same, so this is asked only of what a TCP socket of this machine has sent: Linux never completes that. */
KW_INLINE int kw_is_partial(struct __sk_buff *skb, const struct kw_found *found, int v6)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (found->is_odd || skb->gso_size || data + kw_tcp_at(v6) + KW_TCP_LEN > end)
		return 0;
	return kw_half(data + kw_tcp_at(v6) + 16) == kw_fold(kw_tcp_pseudo_sum(data, found->head_len + found->len, v6));
}

/* Gives the packet these numbers, and its selective acknowledgements those of the plan's `edges`. */
KW_INLINE int kw_renumber(struct __sk_buff *skb, struct kw_work *work, __u32 seq, __u32 ack, int to_client, int is_partial)
{
	const struct kw_segment *segment = &work->segment;
	__u32 place = work->found.tcp_at, head_len = work->found.head_len, words[2] = { bpf_htonl(seq), bpf_htonl(ack) };
	__u64 differs;

	if (seq == segment->seq && ack == segment->ack)
		return 0;
	if (KW_RARE(!is_partial)) {
		differs = (__u64)words[0] + words[1] + (__u32)~bpf_htonl(segment->seq) + (__u32)~bpf_htonl(segment->ack);
		differs = (differs & 0xFFFFFFFF) + (differs >> 32);
		differs = (differs & 0xFFFFFFFF) + (differs >> 32);
		/* Without effect where hardware will write the checksum: then the field does not have these words in it. */
		bpf_l4_csum_replace(skb, place + 16, 0, differs, 0);
	}
	if (bpf_skb_store_bytes(skb, place + 4, words, 8, 0))
		return -1;
	kw_count(KW_TCP_TRANSLATED);
	if (KW_OFTEN(head_len == KW_TCP_LEN || (head_len == KW_TCP_LEN + KW_STAMPS_LEN && segment->is_stamped)))
		return 0;
	return kw_renumber_options(skb, work, to_client);
}

#endif
