/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What the kernel program and the server share: the hot copies, their index, the words that show whether a copy is current,
 * the counters and the times. Everything here is plain data of fixed size; offsets are asserted at the end and again in Rust.
 *
 * The server writes all of it except the counters, the times and the reference marks. The program trusts nothing here beyond what it
 * checks, because every process that maps these pages can write them.
 */
#ifndef KW_INTF_H
#define KW_INTF_H

/* An index bucket is a cache line of slots. */
#define KW_SLOTS 8
/* A page of hot copies, bytes; a copy lies in one page and begins at a multiple of KW_UNIT. */
#define KW_PAGE 65536
#define KW_UNIT 64
/* Longest hot copy with its header, bytes. */
#define KW_COPY_MAX 2048
/* Longest key (protocol.txt, "Keys"), and longest opaque that memcached takes, its letter not counted. */
#define KW_KEY_MAX 250
#define KW_OPAQUE_MAX 31
/* Longest payload of a request that is examined, and of an answer: memcached's datagrams have at most 1400 bytes, 8 of them
* the frame header. A request whose answer needs several datagrams is left to user space. */
#define KW_PAYLOAD_MAX 1392
/* Longest answers over IPv6, and over TCP: packets of 1280 bytes, which every path of IPv6 takes (RFC 8200, section 5) and hardly a path of
 * IPv4 refuses. No router cuts a packet of IPv6 or TCP into pieces, and its complaint may not arrive. A datagram of IPv4 is cut where it has
 * to be. */
#define KW_PACKET_MAX 1280
#define KW_PAYLOAD6_MAX (KW_PACKET_MAX - 40 - 8 - 8)
#define KW_REPLY_MAX (KW_PACKET_MAX - 40 - 32)
/* Most bytes of an answer on TCP that is sent once more: whatever did not take all of it takes a packet of 576 bytes (RFC 791). */
#define KW_PIECE 512
/* Most keys in a request. */
#define KW_KEYS_MAX 64
/* Most requests that are answered in one TCP segment. */
#define KW_LINES_MAX 16
/* Places where a server publishes that a TCP connection is at rest. */
#define KW_RESTS (1u << 14)
/* Most words after the key of `mg`: one for each known flag. */
#define KW_FLAGS_MAX 8
/* Most networks of allowed sources. */
#define KW_ALLOW_MAX 16
/* Stripes of the hash space whose changes are counted: the top bits of a hash are the stripe's number. */
#define KW_STRIPE_BITS 12
#define KW_STRIPES (1u << KW_STRIPE_BITS)
/* The index of the word of `flush_all`, after those of the stripes. */
#define KW_FLUSH KW_STRIPES

/* A slot of the index: the upper half of the hash, and the copy's place. 0: free.
 *
 *     63                32 31            10 9             0
 *     +-------------------+----------------+--------------+
 *     | tag: hash >> 32   | page + 1       | unit in page |
 *     +-------------------+----------------+--------------+
 */
struct kw_bucket {
	__u64 slot[KW_SLOTS];
};

/* A hot copy. Its texts are the parts of an answer, so the program formats no number except a TTL:
 *
 *     cas:  " <cas unique>"
 *     line: "VALUE <key> <flags> <bytes>\r\n<value>\r\n"
 *
 * `seq` is odd while the copy is being written, and has another value afterwards.
 */
struct kw_copy {
	__u32 seq;
	/* second of the region's clock at which the item is expired, as `mg` with `t` shows it; 0: never */
	__u32 expires_s;
	/* the words of the key's stripe and of flush_all when the value was read, each with equal halves */
	__u64 stripe;
	__u64 flush;
	/* set by the program at a hit, cleared by the server's clock hand */
	__u32 referenced;
	__u16 value_len;
	__u8 key_len;
	/* with the space before each */
	__u8 flags_len;
	__u8 size_len;
	__u8 cas_len;
	__u8 unused[2];
	/* second of the region's clock at which a delayed flush_all begins; 0: none is scheduled */
	__u32 flush_s;
	char cas[24];
	char line[];
};
#define KW_COPY_HEADER 64
#define KW_LINE_KEY 6 /* of "VALUE " */

/* Words that the server updates while it runs. */
struct kw_control {
	/* the program answers nothing from this instant of CLOCK_MONOTONIC on, ns; the server renews it */
	__u64 lease_ns;
	/* the region's clock minus CLOCK_MONOTONIC, ns, modulo 2^64 */
	__u64 clock_ns;
	/* seed of the region's hash */
	__u64 seed;
	__u64 unused[5];
};

/* The program's verdict on a packet. It passes up unchanged every packet but a hit. */
enum kw_verdict {
	KW_HIT,          /* answered here */
	KW_NOT_OURS,     /* not to the served address and port; not counted */
	KW_ODD_PACKET,   /* IP options, a fragment, a wrong length or checksum, a VLAN tag, too long,
	                  * not to this host's own link address, or several datagrams in one */
	KW_FORBIDDEN,    /* from a source that is not allowed */
	KW_OVER_RATE,    /* from a source above its rate */
	KW_SILENT,       /* the lease has run out */
	KW_ODD_FRAME,    /* a part of a request, or reserved bytes that are not 0 */
	KW_ODD_REQUEST,  /* not a get, gets or mg that the program understands */
	KW_MISS,         /* a key without a hot copy */
	KW_STALE,        /* a copy that a change has made stale, or that is being written */
	KW_EXPIRED,      /* a copy that has expired */
	KW_TOO_LONG,     /* more than one datagram */
	KW_NO_ROOM,      /* the packet cannot be extended */
	KW_NO_PATH,      /* from a source to which this host has sent nothing through this interface lately */
	KW_TCP_HIT,      /* a key of a request on TCP that was answered here */
	KW_TCP_REPEATED, /* an answer on TCP that was sent once more */
	KW_TCP_REMINDED, /* a TCP segment with nothing new to the server, of which its socket gets the headers only */
	KW_TCP_BUSY,     /* a TCP segment that comes while something else is on its way */
	KW_TCP_TRANSLATED, /* a TCP segment whose numbers were translated, either way */
	KW_VERDICTS
};

/* Buckets of times, and the end of the first one, nanoseconds, as a power of two (layout/latency.rs). */
#define KW_TIME_BUCKETS 48
#define KW_TIME_SHORTEST 6
/* One in so many packets is timed, on average: as of the library's calls (CALLS_PER_SAMPLE). */
#define KW_TIMED_ONE_IN 256

/* The rows of the times: answers, and all runs of the programs for packets of the served port. */
enum kw_timed {
	KW_TIMED_UDP,
	KW_TIMED_TCP,
	KW_TIMED_UDP_RUN,
	KW_TIMED_TCP_RUN,
	KW_TIMED_ROWS
};

/* How long answers, or runs, took on one CPU since the program was loaded. */
struct kw_times {
	__u64 counts[KW_TIME_BUCKETS];
	__u64 sum_ns;
};

/* A network of allowed sources; IPv4 addresses as ::ffff:a.b.c.d, in network byte order. */
struct kw_network {
	__u32 address[4];
	__u32 mask[4];
};

/* A place where a server publishes that a TCP connection is at rest; a line each, because processors write them. */
struct kw_rest {
	/* the connection's ticket plus the number of bytes that the server has read; 0: not at rest */
	__u64 word;
	__u64 unused[7];
};

/* The two ends of a connection, as the iterator lists them; ports and addresses in network byte order. */
struct kw_ends {
	__u16 family; /* AF_INET or AF_INET6 */
	__u16 local_port;
	__u16 remote_port;
	__u16 unused;
	__u32 local[4];
	__u32 remote[4];
	__u32 interface; /* by which the server's socket last sent something */
};

_Static_assert(KW_PAYLOAD6_MAX <= KW_PAYLOAD_MAX && KW_REPLY_MAX <= KW_PAYLOAD_MAX, "what is examined is the most");
_Static_assert(sizeof(struct kw_ends) == 44, "no gaps");
_Static_assert(sizeof(struct kw_times) == 392, "no gaps");
_Static_assert(sizeof(struct kw_rest) == 64, "a line of its own");
_Static_assert(sizeof(struct kw_bucket) == 64, "a bucket is a cache line");
_Static_assert(__builtin_offsetof(struct kw_copy, line) == KW_COPY_HEADER, "the header of a copy");
_Static_assert(sizeof(struct kw_control) == 64, "a line of its own");

#endif
