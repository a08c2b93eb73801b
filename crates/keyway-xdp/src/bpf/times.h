/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * How long the program takes for what it answers: counts by time, as the region has them (keyway-region, layout/latency.rs).
 *
 * Buckets are half octaves of nanoseconds: their bounds are 64, 96, 128, 192, … 2^29. What is shorter or longer has a bucket at either end.
 */
#ifndef KW_TIMES_H
#define KW_TIMES_H

#include "env.h"

/* The bucket of a time in nanoseconds. */
KW_INLINE __u32 kw_time_bucket(__u64 ns)
{
	__u32 left = (__u32)ns, octave = 0;

	if (ns < 1u << KW_TIME_SHORTEST)
		return 0;
	if (ns >> 30)
		return KW_TIME_BUCKETS - 1;
	/* The number of the highest bit, by halves: BPF has no instruction for it. */
	for (__u32 half = 16; half; half >>= 1) {
		if (left >> half) {
			octave += half;
			left >>= half;
		}
	}
	left = 1 + 2 * (octave - KW_TIME_SHORTEST) + ((__u32)ns >> (octave - 1) & 1);
	return left < KW_TIME_BUCKETS ? left : KW_TIME_BUCKETS - 1;
}

#endif
