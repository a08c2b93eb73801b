/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The parts of the kernel's structures that the programs read; libbpf finds their places (CO-RE).
 */
#ifndef KW_KERNEL_H
#define KW_KERNEL_H

#include <bpf/bpf_core_read.h>

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
} __attribute__((preserve_access_index));

struct sock_common {
	volatile unsigned char skc_state;
	unsigned short skc_family;
	__be16 skc_dport;
	__u16 skc_num;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	struct {
		struct {
			int counter;
		} rmem_alloc;
	} sk_backlog;
} __attribute__((preserve_access_index));

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const void *icsk_ulp_ops;
} __attribute__((preserve_access_index));

struct tcp_options_received {
	__u16 snd_wscale : 4, rcv_wscale : 4;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_nxt;
	__u32 write_seq;
	__u32 mss_cache;
	__u32 packets_out;
	__u64 bytes_received;
	struct tcp_options_received rx_opt;
} __attribute__((preserve_access_index));

#endif
