/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The environment of the program: the kernel (BPF), or the host, where tests and fuzzers call it. The other headers are
 * the same in both environments and use only what is declared here.
 *
 *     kw_loop     calls back up to n times, until the callback returns 1 (in BPF the verifier checks the callback once)
 *     kw_move     copies between buffers that have been checked to be long enough
 *     kw_sum      adds 16-bit words, as the Internet checksum does
 *     kw_bucket, kw_page, kw_stripe, kw_control   the shared maps
 */
#ifndef KW_ENV_H
#define KW_ENV_H

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys are scanned and hashed as little-endian words"
#endif

/* Where the compiler places code: what runs for every packet lies together. */
#define KW_OFTEN(x) __builtin_expect(!!(x), 1)
#define KW_RARE(x) __builtin_expect(!!(x), 0)

#ifdef __bpf__

#ifndef KW_LOADS_IN_ORDER
#error "whether the processor that runs the program loads in the program's order: 1 or 0 (build.rs)"
#endif

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#define KW_INLINE static __always_inline
/* Keeps the compiler from dropping a bounds check that the compiler can prove and the verifier cannot. */
#define KW_OPAQUE(x) asm volatile("" : "+r"(x))

#else

#include <linux/types.h>
#include <stddef.h>
#include <string.h>
#define KW_INLINE static inline __attribute__((unused))
#define __noinline __attribute__((noinline, unused))
#define KW_OPAQUE(x) asm volatile("" : "+r"(x))
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)

struct bpf_spin_lock {
	__u32 val;
};

#endif

#include "intf.h"

/* Request and answer are placed so that their payloads begin at the same offset with IPv4 and with IPv6. */
#define KW_HEAD 72      /* of Ethernet 14, IPv6 40, UDP 8, frame 8, and 2 to spare */
#define KW_UDP_AT 56
#define KW_BUFFER 2048  /* more than KW_HEAD + KW_PAYLOAD_MAX; a power of two, so that a mask bounds an offset */
#define KW_PAD 2048     /* most bytes that may be copied to the last offset */

/* The part of a stream that only one end of a TCP connection knows: a request that was answered here, or that answer. Numbers of
* the client from `at` on, `len` of them, do not exist at the server; `before` is how many earlier ones do not. */
struct kw_splice {
	__u32 at;
	__u32 len;
	__u32 before;
};

#define KW_HEADERS 96   /* Ethernet 14, IPv6 40, TCP with timestamps 32, and more than enough */
#define KW_OPTIONS 40   /* the most bytes of TCP options */

/* Which packets are timed. */
struct kw_timer {
	/* when the program began with the packet; 0: it is not timed */
	__u64 begun_ns;
	/* packets before the next one that is timed */
	__u64 until_timed;
};

/* Per-CPU memory of one packet. */
struct kw_scratch {
	__u8 in[KW_BUFFER + KW_PAD];
	__u8 out[KW_BUFFER + KW_PAD];
	/* end of the request's line, without the line end; an offset into `in` */
	__u32 end;
	/* keys that were found */
	__u32 answered;
	/* of several requests in one segment: beginning and line feed of the current one, the end of all, the verdict */
	__u32 line;
	__u32 line_end;
	__u32 data_end;
	__u32 lines;
	/* the current token */
	__u32 at;
	__u32 token_end;
	/* end of the answer in `out` */
	__u32 out_end;
	__u64 hash;
	__u64 acc[4];
	__u64 now_s;
	__u64 seed; /* of the region's hash */
	__u64 seen; /* letters of `mg` that the request has */
	__u32 verdict;
	__u32 with_cas;
	__u32 differs;
	__u32 sum;
	/* the interface that the packet arrived by */
	__u32 interface;
	/* datagrams of IPv4 that this CPU has made: their identification, by which the pieces of one are put together */
	__u32 datagrams;
	struct kw_timer timer;
	/* the answer's link addresses: destination, then source */
	__u8 link[12];
	/* TCP: the headers of the segment, and those of one that is sent or passed on instead of it */
	__u8 head[KW_HEADERS];
	__u8 made[KW_HEADERS];
	/* TCP options before and after their numbers are translated */
	__u8 options[KW_OPTIONS + 8];
	__u8 options_before[KW_OPTIONS + 8];
	struct kw_splice edges;
};

/* How long a path stays valid after the host has used it. After that the next request is passed up, and the server's answer shows
* whether the path has changed. */
#define KW_PATH_NS 10000000000ull

#define KW_AT(offset) ((offset) & (KW_BUFFER - 1))

struct kw_context {
	struct kw_scratch *s;
	const struct kw_copy *copy;
};

#ifdef __bpf__

#define kw_loop(n, callback, context) bpf_loop(n, callback, context, 0)
#define kw_move(to, from, len) bpf_probe_read_kernel(to, len, from)
#define KW_CALLBACK static

#else

typedef long (*kw_callback)(__u32 index, struct kw_context *context);
static inline long kw_loop(__u32 n, kw_callback callback, struct kw_context *context)
{
	__u32 i;

	for (i = 0; i < n; i++)
		if (callback(i, context))
			return i + 1;
	return n;
}
#define kw_move(to, from, len) memcpy(to, from, len)
#define KW_CALLBACK static

#endif

/* The program's configuration, which is set before it is loaded. */
struct kw_config {
	/* the number of buckets of the index, a power of two, minus 1 */
	__u32 bucket_mask;
	__u32 pages;
	/* the served address, in network byte order; 0: none of this family */
	__u32 address4;
	__u32 address6[4];
	/* in network byte order; 0: not served */
	__u16 port;
	__u16 tcp_port;
	__u32 allowed;
	struct kw_network allow[KW_ALLOW_MAX];
	__u32 unused;
	/* a source gets one answer per `answer_ns`, and may save up answers for `burst_ns`; 0: no limit */
	__u64 answer_ns;
	__u64 burst_ns;
};

KW_INLINE __u64 kw_word(const void *at)
{
	__u64 word;

	__builtin_memcpy(&word, at, 8);
	return word;
}

/* The shared maps, NULL if there is no such entry: the program defines these, and the host has its own. */
KW_INLINE const struct kw_bucket *kw_bucket(__u64 hash);
KW_INLINE const __u8 *kw_page(__u32 page);
KW_INLINE const __u64 *kw_stripe(__u32 stripe);
KW_INLINE const struct kw_control *kw_control(void);
KW_INLINE const volatile struct kw_config *kw_config(void);
/* Nanoseconds of CLOCK_MONOTONIC. */
KW_INLINE __u64 kw_clock(void);
/* Whether this source has used up its rate; counts this answer. */
KW_INLINE int kw_is_over_rate(const __u32 source[4], __u64 now);
/* Whether an answer to this source leaves by the interface that the request arrived by; if so, sets its link addresses in `s`. */
KW_INLINE int kw_has_path(struct kw_scratch *s, const __u8 *frame, const __u32 source[4], __u64 now);
/* This CPU's memory of one packet; NULL cannot be. */
KW_INLINE struct kw_scratch *kw_scratch(void);
KW_INLINE void kw_count(enum kw_verdict verdict);
/* Adds the 16-bit words of `len` bytes, up to KW_PAYLOAD_MAX and the headers; the last word is padded with 0. */
KW_INLINE __u32 kw_sum(__u8 *from, __u32 len, __u32 sum);

/* Loads before it are complete before loads after it. x86 keeps that order by itself, the compiler does not. BPF has no barrier, but its atomic
 * operations that return a value are full ones on every processor (Linux: Documentation/atomic_t.txt, "ORDERING"). */
KW_INLINE void kw_read_barrier(void)
{
#ifndef __bpf__
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
#elif KW_LOADS_IN_ORDER
	asm volatile("" ::: "memory");
#else
	__u64 word = 0, none = 0;

	asm volatile("%0 = atomic_fetch_add((u64 *)(%1 + 0), %0)" : "+r"(none) : "r"(&word) : "memory");
#endif
}

/* The link addresses of a frame, swapped. */
KW_INLINE void kw_turn_link(struct kw_scratch *s, const __u8 *frame)
{
	__builtin_memcpy(s->link, frame + 6, 6);
	__builtin_memcpy(s->link + 6, frame, 6);
}

/* Marks a hit, for the server's clock hand. */
KW_INLINE void kw_mark(const struct kw_copy *copy)
{
	/* The only word of a copy that the program writes; a lost or extra mark does no harm. */
	((struct kw_copy *)copy)->referenced = 1;
}

#endif
