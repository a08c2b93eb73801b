/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * What the programs of the same-machine bypass share with the loader. Offsets are asserted here and again in Rust.
 */
#ifndef KW_BYPASS_H
#define KW_BYPASS_H

#include <linux/types.h>

/* Most bytes that are handed over to a socket and that its process has not read, except for the message that reaches this number. */
#define KW_QUEUED_MAX (1 << 20)

/* The ends of a connection. */
enum kw_role {
	KW_SERVER,
	KW_CLIENT,
	KW_LISTENER, /* not an end: what the ends of a server get from its listening socket */
	KW_NOTHING   /* a connection of the server that is not bypassed */
};

/* A socket: the connection as its client sees it, and the end. IPv4 addresses as ::ffff:a.b.c.d, in network byte order. */
struct kw_socket {
	__u64 namespace; /* cookie of the network namespace */
	__u32 client[4];
	__u32 server[4];
	__u16 client_port; /* host byte order */
	__u16 server_port;
	__u32 role;
};

/* A port on which a server listens, in a network namespace. */
struct kw_port {
	__u64 namespace;
	__u64 port;
};

/* What is kept at a socket (local storage). Only programs that hold this socket's lock use it. */
struct kw_end {
	__u32 role;
	/* of the first byte that each end sends, sequence numbers */
	__u32 client_first;
	__u32 server_first;
	/* this end has joined the pair */
	__u32 is_in;
	/* number of times that this end has told what it has read */
	__u32 turn;
	/* the other end's turn when this one last sent by TCP */
	__u32 turn_passed;
	/* length of the last message that was handed over; it may still be on its way */
	__u64 last;
	struct kw_socket pair;  /* key of the connection, and of its server's socket */
	struct kw_socket other; /* key of the other end's socket */
};

/* What an end tells the other one. */
struct kw_told {
	/* its turn in the upper half; the sequence number up to which it has read what came by TCP in the lower */
	__u64 read;
	/* bytes that it has been handed and that it does not hold any more */
	__u64 taken;
	/* bytes that it has handed over and that have arrived: all but those of the last message */
	__u64 given;
	__u64 unused[5];
};

/* A connection: from the server's end on, until both ends that have joined have closed. */
struct kw_pair {
	struct kw_told told[2]; /* by role */
	/* server_first in the upper half; bit 1 << role: this end has joined and is not closed */
	__u64 life;
	__u32 client_first;
	__u32 server_first;
};

enum kw_counter {
	KW_PAIRED,  /* connections of which both ends have joined */
	KW_PARTED,  /* of these, those of which an end has closed */
	KW_HANDED,  /* messages that were handed over */
	KW_BYTES,   /* bytes of these */
	KW_BEHIND,  /* messages that took TCP because not all that was sent before by TCP is known to have been read */
	KW_FULL,    /* because the other end has not read enough */
	KW_COUNTERS
};

_Static_assert(sizeof(struct kw_socket) == 48, "a key without gaps");
_Static_assert(sizeof(struct kw_end) == 128, "no gaps");
_Static_assert(sizeof(struct kw_told) == 64, "a line for each end");

#endif
