/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * TCP segments: reading their headers, and making those of answers.
 *
 * Headers are in `head` as if the IPv4 header had no options, so each has one place. Data is in `in`, and an answer's in `out`, both from
 * KW_HEAD on.
 */
#ifndef KW_SEGMENT_H
#define KW_SEGMENT_H

#include "packet.h"
#include "tcp.h"

#define KW_PROTOCOL_TCP 6
#define KW_PROTOCOL_ICMP 1
#define KW_PROTOCOL_ICMP6 58
#define KW_LINK_LEN 14
#define KW_TCP4 (KW_LINK_LEN + 20)
#define KW_TCP6 (KW_LINK_LEN + 40)
/* Headers of IPv6 that may stand before TCP (RFC 8200, section 4); Linux writes the first for packets of more than 64 KiB (RFC 2675). */
#define KW_HOP_BY_HOP 0
#define KW_ROUTING 43
#define KW_FRAGMENT 44
#define KW_DESTINATION 60
#define KW_EXTENSIONS_MAX 8
#define KW_TCP_LEN 20       /* the header without options */
#define KW_STAMPS_LEN 12    /* two NOPs and the timestamp option (RFC 7323, appendix A) */
#define KW_STAMPS_BEGIN 0x0A080101u

KW_INLINE __u32 kw_tcp_at(int v6)
{
	return v6 ? KW_TCP6 : KW_TCP4;
}

KW_INLINE void kw_put_quad(__u8 *at, __u32 quad)
{
	__builtin_memcpy(at, &quad, 4);
}

KW_INLINE __u64 kw_tcp_pseudo_sum(const __u8 *head, __u32 tcp_len, int v6)
{
	return kw_pseudo_sum(head + KW_LINK_LEN, KW_PROTOCOL_TCP, bpf_htons((__u16)tcp_len), v6);
}

KW_INLINE __u64 kw_tcp_head_sum(const __u8 *head, int has_stamps, int v6)
{
	const __u8 *tcp = head + kw_tcp_at(v6);
	__u64 sum = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = 0; i < 5; i++)
		sum += kw_quad(tcp + 4 * i);
	if (has_stamps)
		sum += (__u64)kw_quad(tcp + 20) + kw_quad(tcp + 24) + kw_quad(tcp + 28);
	return sum;
}

/* Which checksum the segment has; its header is plain, its data are `len` bytes in `in`. */
KW_INLINE enum kw_checksum kw_tcp_check(struct kw_scratch *s, __u32 len, int has_stamps, int v6)
{
	__u16 field = kw_half(s->head + kw_tcp_at(v6) + 16);
	__u64 pseudo = kw_tcp_pseudo_sum(s->head, KW_TCP_LEN + (has_stamps ? KW_STAMPS_LEN : 0) + len, v6);
	int is_partial = field == kw_fold(pseudo);
	int is_full = kw_fold(pseudo + kw_tcp_head_sum(s->head, has_stamps, v6) + kw_sum(s->in + KW_HEAD, len, 0)) == 0xFFFF;

	/* As with UDP, one in 65536 is valid as both. */
	if (is_partial == is_full)
		return KW_CHECKSUM_BAD;
	return is_full ? KW_CHECKSUM_FULL : KW_CHECKSUM_PARTIAL;
}

/* The checksum to write into what is made from a segment that is not examined: hardware writes it, or it is written here. */
KW_INLINE enum kw_checksum kw_tcp_kind(const struct kw_scratch *s, __u32 tcp_len, int v6)
{
	return kw_half(s->head + kw_tcp_at(v6) + 16) == kw_fold(kw_tcp_pseudo_sum(s->head, tcp_len, v6)) ? KW_CHECKSUM_PARTIAL :
													     KW_CHECKSUM_FULL;
}

/* What kw_make() writes. */
struct kw_made {
	__u32 seq;
	__u32 ack;
	__u32 stamp; /* host byte order */
	__u32 len;   /* of the data, in `out` */
	__u16 window; /* network byte order */
	__u8 flags;
	__u8 has_stamps;
	__u8 is_turned; /* goes back to where the segment in `head` came from */
};

/* Writes the headers of a segment into `made`, from those in `head`: a whole packet without IP options, whatever it is made from. */
KW_INLINE void kw_make(struct kw_scratch *s, const struct kw_made *made, enum kw_checksum checksum, int v6)
{
	__u32 tcp_len = KW_TCP_LEN + (made->has_stamps ? KW_STAMPS_LEN : 0);
	const __u8 *from = s->head + kw_tcp_at(v6);
	__u8 *ip = s->made + KW_LINK_LEN, *tcp = s->made + kw_tcp_at(v6);
	__u64 sum;

	__builtin_memcpy(s->made, s->head, kw_tcp_at(v6));
	__builtin_memcpy(tcp, from, 4);
	if (made->is_turned) {
		__builtin_memcpy(s->made, s->link, 12);
		__builtin_memcpy(tcp, from + 2, 2);
		__builtin_memcpy(tcp + 2, from, 2);
		if (v6) {
			ip[7] = KW_TTL;
			__builtin_memcpy(ip + 8, s->head + KW_LINK_LEN + 24, 16);
			__builtin_memcpy(ip + 24, s->head + KW_LINK_LEN + 8, 16);
		} else {
			ip[8] = KW_TTL;
			__builtin_memcpy(ip + 12, s->head + KW_LINK_LEN + 16, 4);
			__builtin_memcpy(ip + 16, s->head + KW_LINK_LEN + 12, 4);
		}
	}
	if (v6) {
		__builtin_memcpy(ip, "\x60\0\0\0", 4);
		kw_put_half(ip + 4, bpf_htons((__u16)(tcp_len + made->len)));
		ip[6] = KW_PROTOCOL_TCP;
	} else {
		__builtin_memcpy(ip, "\x45\0\0\0\0\0\x40\0", 8);
		kw_put_half(ip + 2, bpf_htons((__u16)(20 + tcp_len + made->len)));
		kw_put_half(ip + 10, 0);
		kw_put_half(ip + 10, ~kw_fold(kw_ip4_sum(ip)));
	}
	kw_put_quad(tcp + 4, bpf_htonl(made->seq));
	kw_put_quad(tcp + 8, bpf_htonl(made->ack));
	tcp[12] = (__u8)(tcp_len << 2);
	tcp[13] = made->flags;
	kw_put_half(tcp + 14, made->window);
	kw_put_quad(tcp + 16, 0);
	if (made->has_stamps) {
		kw_put_quad(tcp + 20, KW_STAMPS_BEGIN);
		if (made->is_turned) {
			kw_put_quad(tcp + 24, bpf_htonl(made->stamp));
			__builtin_memcpy(tcp + 28, from + 24, 4); /* the sender's own stamp returns to it */
		} else {
			__builtin_memcpy(tcp + 24, from + 24, 8);
		}
	}
	sum = kw_tcp_pseudo_sum(s->made, tcp_len + made->len, v6);
	if (checksum == KW_CHECKSUM_FULL) {
		sum += kw_tcp_head_sum(s->made, made->has_stamps, v6);
		if (made->len)
			sum += kw_sum(s->out + KW_HEAD, made->len, 0);
		kw_put_half(tcp + 16, ~kw_fold(sum));
	} else {
		kw_put_half(tcp + 16, kw_fold(sum));
	}
}

/* Reads a segment's header into `segment`, but for its timestamps. */
KW_INLINE void kw_read_numbers(const __u8 *tcp, struct kw_segment *segment)
{
	segment->ports = kw_quad(tcp);
	segment->seq = bpf_ntohl(kw_quad(tcp + 4));
	segment->ack = bpf_ntohl(kw_quad(tcp + 8));
	segment->window = bpf_ntohs(kw_half(tcp + 14));
	segment->flags = tcp[13];
}

/* Reads it with its timestamps: 32 bytes, whether or not it is so long. */
KW_INLINE void kw_read_segment(const __u8 *tcp, struct kw_segment *segment)
{
	kw_read_numbers(tcp, segment);
	segment->is_stamped = tcp[12] >= 0x80 && kw_quad(tcp + 20) == KW_STAMPS_BEGIN;
	segment->stamp = kw_quad(tcp + 24);
}

/* One TCP option: those that acknowledge selectively (RFC 2018) name numbers, which are translated by `edges`: to the server's if
* `with_cas` is 0, else to the client's. */
KW_CALLBACK long kw_option_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	__u32 at = s->at, end = s->end, kind, len, i;
	__u8 *option;

	if (at + 1 >= end || at >= KW_OPTIONS)
		return 1;
	option = s->options + (at & 63);
	if (at > KW_OPTIONS - 2)
		return 1;
	kind = option[0];
	if (kind == 0)
		return 1;
	if (kind == 1) {
		s->at = at + 1;
		return 0;
	}
	len = option[1];
	if (len < 2 || at + len > end)
		return 1;
	s->at = at + len;
	if (kind != 5)
		return 0;
#pragma clang loop unroll(full)
	for (i = 0; i < 8; i++) {
		__u32 place = at + 2 + 4 * i;

		if (4 * i + 6 <= len && place <= KW_OPTIONS - 4) {
			__u8 *edge;
			__u32 number;

			KW_OPAQUE(place);
			if (place > KW_OPTIONS - 4)
				return 1;
			edge = s->options + place;
			number = bpf_ntohl(kw_quad(edge));
			number = s->with_cas ? kw_outer(&s->edges, number) : kw_inner(&s->edges, number);
			kw_put_quad(edge, bpf_htonl(number));
		}
	}
	return 1;
}

/* Translates the selective acknowledgements in the first `len` bytes of `options`. */
KW_INLINE void kw_translate_options(struct kw_context *context, __u32 len, const struct kw_splice *edges, int to_client)
{
	struct kw_scratch *s = context->s;

	s->at = 0;
	s->end = len;
	s->with_cas = to_client;
	s->edges = *edges;
	kw_loop(KW_OPTIONS, kw_option_step, context);
}

#endif
