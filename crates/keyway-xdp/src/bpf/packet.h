/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Ethernet, IP and UDP: is the packet a valid request to the served address, and what are the headers of its answer?
 *
 * Frame and headers are placed in `in` so that the UDP header is at KW_UDP_AT and the payload at KW_HEAD, for both families.
 */
#ifndef KW_PACKET_H
#define KW_PACKET_H

#include "env.h"
#include "reply.h"

#define KW_FRAME4 (14 + 20 + 8) /* Ethernet, IPv4 without options, UDP */
#define KW_FRAME6 (14 + 40 + 8)
#define KW_START4 (KW_HEAD - 8 - KW_FRAME4)
#define KW_START6 (KW_HEAD - 8 - KW_FRAME6)
#define KW_IP4 (KW_START4 + 14)
#define KW_IP6 (KW_START6 + 14)
#define KW_PROTOCOL_UDP 17
#define KW_TTL 64

KW_INLINE __u16 kw_half(const __u8 *at)
{
	__u16 half;

	__builtin_memcpy(&half, at, 2);
	return half;
}

KW_INLINE __u32 kw_quad(const __u8 *at)
{
	__u32 quad;

	__builtin_memcpy(&quad, at, 4);
	return quad;
}

KW_INLINE void kw_put_half(__u8 *at, __u16 half)
{
	__builtin_memcpy(at, &half, 2);
}

/* Folds a 64-bit sum to 16 bits, in one's complement. */
KW_INLINE __u16 kw_fold(__u64 sum)
{
	sum = (sum & 0xFFFFFFFF) + (sum >> 32);
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum = (sum & 0xFFFF) + (sum >> 16);
	return sum;
}

/* The pseudo header's sum (RFC 768, RFC 9293 section 3.1, RFC 8200 section 8.1): the addresses of the IP header, the protocol, and the
* length of what follows, in network byte order. */
KW_INLINE __u64 kw_pseudo_sum(const __u8 *ip, __u16 protocol, __u16 len, int v6)
{
	__u64 sum = bpf_htons(protocol) + (__u64)len;
	int i;

	if (!v6)
		return sum + kw_quad(ip + 12) + kw_quad(ip + 16);
#pragma clang loop unroll(full)
	for (i = 0; i < 8; i++)
		sum += kw_quad(ip + 8 + 4 * i);
	return sum;
}

/* Adds the words of an IPv4 header without options. */
KW_INLINE __u64 kw_ip4_sum(const __u8 *ip)
{
	__u64 sum = 0;
	int i;

#pragma clang loop unroll(full)
	for (i = 0; i < 5; i++)
		sum += kw_quad(ip + 4 * i);
	return sum;
}

KW_INLINE __u64 kw_udp_pseudo_sum(const __u8 *buffer, int v6)
{
	return kw_pseudo_sum(buffer + (v6 ? KW_IP6 : KW_IP4), KW_PROTOCOL_UDP, kw_half(buffer + KW_UDP_AT + 4), v6);
}

/* What to write as the answer's UDP checksum. */
enum kw_checksum {
	KW_CHECKSUM_BAD,
	/* the complete checksum */
	KW_CHECKSUM_FULL,
	/* the packet never left this machine, or its sender leaves the sum to hardware: the field has the pseudo header's sum only
	* (Linux: CHECKSUM_PARTIAL), and the answer's field gets the same */
	KW_CHECKSUM_PARTIAL,
};

KW_INLINE enum kw_checksum kw_check(struct kw_scratch *s, __u32 udp_len, int v6)
{
	__u16 field = kw_half(s->in + KW_UDP_AT + 6);
	__u64 pseudo = kw_udp_pseudo_sum(s->in, v6);
	int is_full, is_partial;

	/* RFC 768: the sender made no checksum. RFC 8200 does not allow such packets. */
	if (!field)
		return v6 ? KW_CHECKSUM_BAD : KW_CHECKSUM_FULL;
	is_partial = field == kw_fold(pseudo);
	is_full = kw_fold(pseudo + kw_sum(s->in + KW_UDP_AT, udp_len, 0)) == 0xFFFF;
	/* One packet in 65536 has a sum that is valid as both; user space can distinguish them. */
	if (is_partial == is_full)
		return KW_CHECKSUM_BAD;
	return is_full ? KW_CHECKSUM_FULL : KW_CHECKSUM_PARTIAL;
}

/* The source as an IPv6 address. */
KW_INLINE void kw_source(const struct kw_scratch *s, int v6, __u32 source[4])
{
	if (v6) {
		source[0] = kw_quad(s->in + KW_IP6 + 8);
		source[1] = kw_quad(s->in + KW_IP6 + 12);
		source[2] = kw_quad(s->in + KW_IP6 + 16);
		source[3] = kw_quad(s->in + KW_IP6 + 20);
	} else {
		source[0] = 0;
		source[1] = 0;
		source[2] = 0xFFFF0000;
		source[3] = kw_quad(s->in + KW_IP4 + 12);
	}
}

KW_INLINE int kw_may_ask(const __u32 source[4])
{
	const volatile struct kw_config *config = kw_config();
	__u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < KW_ALLOW_MAX; i++) {
		const volatile struct kw_network *network = &config->allow[i];

		if (i >= config->allowed)
			return 0;
		if (!((source[0] & network->mask[0]) ^ network->address[0]) && !((source[1] & network->mask[1]) ^ network->address[1]) &&
		    !((source[2] & network->mask[2]) ^ network->address[2]) && !((source[3] & network->mask[3]) ^ network->address[3]))
			return 1;
	}
	return 0;
}

/* Whether the packet is IP, to the served address and port. */
KW_INLINE int kw_is_ours(const struct kw_scratch *s, int v6)
{
	const volatile struct kw_config *config = kw_config();
	const __u8 *target = s->in + (v6 ? KW_IP6 + 24 : KW_IP4 + 16);

	if (kw_half(s->in + (v6 ? KW_IP6 : KW_IP4) - 2) != bpf_htons(v6 ? 0x86DD : 0x0800) ||
	    kw_half(s->in + KW_UDP_AT + 2) != config->port)
		return 0;
	if (!v6)
		return kw_quad(target) == config->address4;
	return kw_quad(target) == config->address6[0] && kw_quad(target + 4) == config->address6[1] &&
	       kw_quad(target + 8) == config->address6[2] && kw_quad(target + 12) == config->address6[3];
}

/* Whether the IP header has no options and describes a whole packet, `frame_len` long or padded to it. Returns the UDP length
* that it leaves room for, or 0. */
KW_INLINE __u32 kw_open_ip(const struct kw_scratch *s, __u32 frame_len, int v6)
{
	__u32 len;

	if (v6) {
		const __u8 *ip = s->in + KW_IP6;

		len = bpf_ntohs(kw_half(ip + 4));
		if (ip[0] >> 4 != 6 || ip[6] != KW_PROTOCOL_UDP || 54 + len > frame_len)
			return 0;
		return len;
	} else {
		const __u8 *ip = s->in + KW_IP4;

		len = bpf_ntohs(kw_half(ip + 2));
		/* No options; in the fragment word only "do not fragment" may be set. */
		if (ip[0] != 0x45 || (kw_half(ip + 6) & ~bpf_htons(0x4000) & 0xFFFF) || ip[9] != KW_PROTOCOL_UDP)
			return 0;
		if (len < 28 || 14 + len > frame_len || kw_fold(kw_ip4_sum(ip)) != 0xFFFF)
			return 0;
		return len - 20;
	}
}

/* Writes the answer's headers into `out`: the request's, with source and destination swapped. */
KW_INLINE void kw_head(struct kw_scratch *s, enum kw_checksum checksum, int v6)
{
	__u32 start = v6 ? KW_START6 : KW_START4;
	__u32 udp_len = s->out_end - KW_UDP_AT;
	__u8 *udp = s->out + KW_UDP_AT;
	__u64 sum;

	__builtin_memcpy(s->out + start, s->link, 12);
	__builtin_memcpy(s->out + start + 12, s->in + start + 12, 2);
	if (v6) {
		__u8 *ip = s->out + KW_IP6;

		__builtin_memcpy(ip, "\x60\0\0\0", 4);
		kw_put_half(ip + 4, bpf_htons((__u16)udp_len));
		ip[6] = KW_PROTOCOL_UDP;
		ip[7] = KW_TTL;
		__builtin_memcpy(ip + 8, s->in + KW_IP6 + 24, 16);
		__builtin_memcpy(ip + 24, s->in + KW_IP6 + 8, 16);
	} else {
		__u8 *ip = s->out + KW_IP4;

		/* Without "do not fragment": the complaint of a router would reach nobody who could send it again. */
		__builtin_memcpy(ip, "\x45\0\0\0\0\0\0\0", 8);
		kw_put_half(ip + 2, bpf_htons((__u16)(udp_len + 20)));
		kw_put_half(ip + 4, bpf_htons((__u16)++s->datagrams));
		ip[8] = KW_TTL;
		ip[9] = KW_PROTOCOL_UDP;
		kw_put_half(ip + 10, 0);
		__builtin_memcpy(ip + 12, s->in + KW_IP4 + 16, 4);
		__builtin_memcpy(ip + 16, s->in + KW_IP4 + 12, 4);
		kw_put_half(ip + 10, ~kw_fold(kw_ip4_sum(ip)));
	}
	__builtin_memcpy(udp, s->in + KW_UDP_AT + 2, 2);
	__builtin_memcpy(udp + 2, s->in + KW_UDP_AT, 2);
	kw_put_half(udp + 4, bpf_htons((__u16)udp_len));
	kw_put_half(udp + 6, 0);
	/* the frame: this request's id, datagram 0 of 1 */
	__builtin_memcpy(udp + 8, s->in + KW_UDP_AT + 8, 2);
	__builtin_memcpy(udp + 10, "\0\0\0\x01\0\0", 6);
	sum = kw_udp_pseudo_sum(s->out, v6);
	if (checksum == KW_CHECKSUM_FULL) {
		__u16 full = ~kw_fold(sum + kw_sum(udp, udp_len, 0));

		kw_put_half(udp + 6, full ? full : 0xFFFF);
	} else {
		kw_put_half(udp + 6, kw_fold(sum));
	}
}

/* Decides on the frame of `frame_len` bytes in `in`. With KW_HIT its answer is in `out`, from KW_START4 or KW_START6 up to
* `out_end`. */
KW_INLINE enum kw_verdict kw_decide(struct kw_scratch *s, __u32 frame_len, int v6)
{
	const struct kw_control *control = kw_control();
	struct kw_context context = { .s = s };
	enum kw_checksum checksum;
	enum kw_verdict verdict;
	__u32 source[4], udp_len, len;
	__u64 now = kw_clock();

	if (!kw_is_ours(s, v6))
		return KW_NOT_OURS;
	if (!control || now >= *(volatile const __u64 *)&control->lease_ns)
		return KW_SILENT;
	/* What the server set before it renewed the lease is there now. */
	kw_read_barrier();
	udp_len = kw_open_ip(s, frame_len, v6);
	if (!udp_len || udp_len != bpf_ntohs(kw_half(s->in + KW_UDP_AT + 4)) || !kw_half(s->in + KW_UDP_AT))
		return KW_ODD_PACKET;
	if (udp_len <= 16 || udp_len > 16 + KW_PAYLOAD_MAX)
		return KW_ODD_FRAME;
	len = udp_len - 16;
	KW_OPAQUE(len);
	if (len > KW_PAYLOAD_MAX)
		return KW_ODD_FRAME;
	/* sequence 0, total 1, reserved 0 */
	if (kw_half(s->in + KW_UDP_AT + 10) || kw_quad(s->in + KW_UDP_AT + 12) != 0x00000100)
		return KW_ODD_FRAME;
	kw_source(s, v6, source);
	if (!kw_may_ask(source))
		return KW_FORBIDDEN;
	checksum = kw_check(s, udp_len, v6);
	if (checksum == KW_CHECKSUM_BAD)
		return KW_ODD_PACKET;
	if (!kw_has_path(s, s->in + (v6 ? KW_START6 : KW_START4), source, now))
		return KW_NO_PATH;
	s->seed = *(volatile const __u64 *)&control->seed;
	s->now_s = (now + *(volatile const __u64 *)&control->clock_ns) / 1000000000;
	verdict = kw_answer(&context, len);
	if (verdict != KW_HIT)
		return verdict;
	if (v6 && s->out_end > KW_HEAD + KW_PAYLOAD6_MAX)
		return KW_TOO_LONG;
	if (kw_is_over_rate(source, now))
		return KW_OVER_RATE;
	kw_head(s, checksum, v6);
	return KW_HIT;
}

#endif
