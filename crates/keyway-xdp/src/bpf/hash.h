/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * XXH64 (specification by Y. Collet, "XXH64 algorithm description"): the region's hash of a key, from the same seed.
 *
 * The key stands in `in` and its length is at most 250; behind it is memory that may be read.
 */
#ifndef KW_HASH_H
#define KW_HASH_H

#include "env.h"

#define KW_P1 0x9E3779B185EBCA87ull
#define KW_P2 0xC2B2AE3D27D4EB4Full
#define KW_P3 0x165667B19E3779F9ull
#define KW_P4 0x85EBCA77C2B2AE63ull
#define KW_P5 0x27D4EB2F165667C5ull

KW_INLINE __u64 kw_rotate(__u64 x, int by)
{
	return x << by | x >> (64 - by);
}

KW_INLINE __u64 kw_round(__u64 acc, __u64 word)
{
	return kw_rotate(acc + word * KW_P2, 31) * KW_P1;
}

KW_INLINE __u64 kw_merge(__u64 hash, __u64 acc)
{
	return (hash ^ kw_round(0, acc)) * KW_P1 + KW_P4;
}

/* One stripe of 32 bytes. */
KW_CALLBACK long kw_hash_stripe(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	const __u8 *stripe = s->in + KW_AT(s->at + index * 32);

	s->acc[0] = kw_round(s->acc[0], kw_word(stripe));
	s->acc[1] = kw_round(s->acc[1], kw_word(stripe + 8));
	s->acc[2] = kw_round(s->acc[2], kw_word(stripe + 16));
	s->acc[3] = kw_round(s->acc[3], kw_word(stripe + 24));
	return 0;
}

/* Hashes the token at hand into `s->hash`. */
KW_INLINE void kw_hash(struct kw_context *context, __u64 seed)
{
	struct kw_scratch *s = context->s;
	__u32 len = s->token_end - s->at;
	__u32 tail = s->at + (len & ~31u);
	const __u8 *rest = s->in + KW_AT(tail);
	__u64 hash = seed + KW_P5;
	__u32 word = 0;

	if (len >= 32) {
		s->acc[0] = seed + KW_P1 + KW_P2;
		s->acc[1] = seed + KW_P2;
		s->acc[2] = seed;
		s->acc[3] = seed - KW_P1;
		kw_loop(len / 32, kw_hash_stripe, context);
		hash = kw_rotate(s->acc[0], 1) + kw_rotate(s->acc[1], 7) + kw_rotate(s->acc[2], 12) +
		       kw_rotate(s->acc[3], 18);
		hash = kw_merge(hash, s->acc[0]);
		hash = kw_merge(hash, s->acc[1]);
		hash = kw_merge(hash, s->acc[2]);
		hash = kw_merge(hash, s->acc[3]);
	}
	hash += len;
#pragma clang loop unroll(full)
	for (word = 0; word < 3; word++) {
		if ((len & 31) / 8 > word)
			hash = kw_rotate(hash ^ kw_round(0, kw_word(rest + word * 8)), 27) * KW_P1 + KW_P4;
	}
	rest = s->in + KW_AT(s->at + (len & ~7u));
	if (len & 4) {
		hash = kw_rotate(hash ^ (kw_word(rest) & 0xFFFFFFFFull) * KW_P1, 23) * KW_P2 + KW_P3;
		rest += 4;
	}
#pragma clang loop unroll(full)
	for (word = 0; word < 3; word++) {
		if ((len & 3) > word)
			hash = kw_rotate(hash ^ rest[word] * KW_P5, 11) * KW_P1;
	}
	hash = (hash ^ hash >> 33) * KW_P2;
	hash = (hash ^ hash >> 29) * KW_P3;
	s->hash = hash ^ hash >> 32;
}

#endif
