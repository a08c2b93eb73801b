/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The region's hash of a key, with the same seed: NH, as in `hash.rs` of keyway-region. Words of 8 bytes, each with a secret added to
 * it, are multiplied in pairs; the sum, 128 bits, is folded to 64 by another product with secrets.
 *
 * The key is in `in` and has at most 250 bytes; the memory after it may be read.
 */
#ifndef KW_HASH_H
#define KW_HASH_H

#include "env.h"

/* The secret with this number (SplitMix64). */
KW_INLINE __u64 kw_secret(__u64 seed, __u64 number)
{
	__u64 z = seed + (number + 1) * 0x9E3779B97F4A7C15ull;

	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ z >> 27) * 0x94D049BB133111EBull;
	return z ^ z >> 31;
}

/* The upper half of a product: BPF multiplication gives 64 bits only. */
KW_INLINE __u64 kw_upper(__u64 a, __u64 b)
{
	__u64 a0 = a & 0xFFFFFFFFull, a1 = a >> 32, b0 = b & 0xFFFFFFFFull, b1 = b >> 32;
	__u64 one = a1 * b0, other = a0 * b1;
	__u64 middle = (a0 * b0 >> 32) + (one & 0xFFFFFFFFull) + (other & 0xFFFFFFFFull);

	return a1 * b1 + (one >> 32) + (other >> 32) + (middle >> 32);
}

/* Adds the product of a pair of words to the sum in `acc`. */
KW_INLINE void kw_add_pair(struct kw_scratch *s, __u64 seed, __u32 pair, __u64 a, __u64 b)
{
	__u64 lower;

	a += kw_secret(seed, 2 * pair + 2);
	b += kw_secret(seed, 2 * pair + 3);
	lower = a * b;
	s->acc[0] += lower;
	s->acc[1] += kw_upper(a, b) + (s->acc[0] < lower);
}

/* One pair of words (16 bytes) of the current token; the last pair is its last 16 bytes. */
KW_CALLBACK long kw_hash_pair(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	__u32 at = s->at + index * 16;
	const __u8 *pair;

	if (at + 16 > s->token_end)
		at = s->token_end - 16;
	pair = s->in + KW_AT(at);
	kw_add_pair(s, s->hash, index, kw_word(pair), kw_word(pair + 8));
	return 0;
}

/* Hashes the current token into `s->hash`. */
KW_INLINE void kw_hash(struct kw_context *context, __u64 seed)
{
	struct kw_scratch *s = context->s;
	__u32 len = s->token_end - s->at;
	const __u8 *first = s->in + KW_AT(s->at);
	__u64 a = 0, b = 0;

	s->acc[0] = 0;
	s->acc[1] = 0;
	if (len > 16) {
		s->hash = seed;
		kw_loop((len + 15) / 16, kw_hash_pair, context);
	} else {
		if (len >= 8) {
			a = kw_word(first);
			b = kw_word(s->in + KW_AT(s->token_end - 8));
		} else if (len >= 4) {
			a = kw_word(first) & 0xFFFFFFFFull;
			b = kw_word(s->in + KW_AT(s->token_end - 4)) & 0xFFFFFFFFull;
		} else if (len > 0) {
			/* Its bytes, padded with zeros. */
			a = kw_word(first) & ((1ull << 8 * len) - 1);
		}
		kw_add_pair(s, seed, 0, a, b);
	}
	s->acc[0] += len;
	s->acc[1] += s->acc[0] < len;
	a = s->acc[0] ^ kw_secret(seed, 0);
	b = s->acc[1] ^ kw_secret(seed, 1);
	s->hash = a * b ^ kw_upper(a, b);
}

#endif
