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
};

/* Per-CPU memory of one segment, beside `kw_scratches`: a program's stack is small. */
struct kw_work {
	struct kw_found found;
	struct kw_segment segment;
	struct kw_facts facts;
	struct kw_plan plan;
	struct kw_timer timer;
};

/* Whether the packet is TCP and concerns the served address and port: 4, 6, or 0. Others must cost little. */
KW_INLINE int kw_tcp_family(struct __sk_buff *skb, int is_incoming)
{
	const volatile struct kw_config *config = kw_config();
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 port_at;

	if (KW_RARE(data + KW_TCP4 + KW_TCP_LEN > end)) {
		if (skb->len < KW_TCP4 + KW_TCP_LEN || bpf_skb_pull_data(skb, KW_TCP4 + KW_TCP_LEN))
			return 0;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + KW_TCP4 + KW_TCP_LEN > end)
			return 0;
	}
	if (kw_half(data + 12) == bpf_htons(ETH_P_IP)) {
		if (!config->address4 || data[23] != KW_PROTOCOL_TCP ||
		    kw_quad(data + KW_LINK_LEN + (is_incoming ? 16 : 12)) != config->address4)
			return 0;
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
	/* Linux puts packets of more than 64 KiB together (BIG TCP); they have an option before TCP, so the port is looked at later. */
	if (!(data[6] == KW_PROTOCOL_TCP && kw_half(data + 40 + (is_incoming ? 2 : 0)) == config->tcp_port) &&
	    !(data[6] == KW_JUMBO && data[40] == KW_PROTOCOL_TCP))
		return 0;
	data += is_incoming ? 24 : 8;
	return kw_quad(data) == config->address6[0] && kw_quad(data + 4) == config->address6[1] && kw_quad(data + 8) == config->address6[2] &&
	       kw_quad(data + 12) == config->address6[3] ? 6 : 0;
}

/* Reads the headers of a packet that has IP options, or has them elsewhere, into `head`; 0 if they are a TCP segment's. */
static __noinline int kw_tcp_open(struct __sk_buff *skb, struct kw_scratch *s, struct kw_work *work, int is_incoming, int v6)
{
	struct kw_found *found;
	const __u8 *tcp;
	__u32 ip_len = 40, len;

	if (!s || !work)
		return -1;
	found = &work->found;
	tcp = s->head + kw_tcp_at(v6);
	if (bpf_skb_load_bytes(skb, 0, s->head, v6 ? KW_TCP6 + KW_TCP_LEN : KW_TCP4 + KW_TCP_LEN))
		return -1;
	if (v6) {
		if (s->head[KW_LINK_LEN + 6] == KW_JUMBO)
			ip_len += KW_JUMBO_LEN;
		len = bpf_ntohs(kw_half(s->head + KW_LINK_LEN + 4)) + 40;
		if (ip_len != 40 && bpf_skb_load_bytes(skb, KW_LINK_LEN + ip_len, s->head + KW_TCP6, KW_TCP_LEN))
			return -1;
	} else {
		const __u8 *ip = s->head + KW_LINK_LEN;

		ip_len = (ip[0] & 15) * 4;
		len = bpf_ntohs(kw_half(ip + 2));
		if (ip[0] >> 4 != 4 || ip_len < 20 || kw_half(ip + 6) & bpf_htons(0x1FFF))
			return -1;
		if (ip_len != 20 && bpf_skb_load_bytes(skb, KW_LINK_LEN + ip_len, s->head + KW_TCP4, KW_TCP_LEN))
			return -1;
	}
	if (kw_half(tcp + (is_incoming ? 2 : 0)) != kw_config()->tcp_port)
		return -1;
	found->is_odd = ip_len != (v6 ? 40 : 20) || (!v6 && kw_half(s->head + KW_LINK_LEN + 6) & ~bpf_htons(0x4000) & 0xFFFF);
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

/* Reads the packet's headers; 0 if they are a TCP segment's. The usual ones are read where they are. */
KW_INLINE int kw_tcp_read(struct __sk_buff *skb, struct kw_work *work, int is_incoming, int v6)
{
	const __u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *ip = data + KW_LINK_LEN, *tcp = data + kw_tcp_at(v6);
	struct kw_segment *segment = &work->segment;
	struct kw_found *found = &work->found;
	struct kw_scratch *s;

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
