/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Finding a key's hot copy, and deciding whether it may be sent.
 *
 * A copy may be sent if, at one instant after the request arrived, its stripe's word and the flush word were those that the
 * server saw when it read the value, with equal halves: then no change of the key has begun since (docs/coherence.md). The
 * copy itself is read under `seq`, which is read again after everything else has been read from the copy.
 */
#ifndef KW_COPY_H
#define KW_COPY_H

#include "env.h"

/* Compares 32 bytes of the key with the current token. */
KW_CALLBACK long kw_compare_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	__u32 done = (index & 7) * 32;
	__u32 left = s->token_end - s->at - done; /* callers stop before 0 */
	const __u8 *ours = s->in + KW_AT(s->at + done);
	const __u8 *theirs = (const __u8 *)context->copy + KW_COPY_HEADER + KW_LINE_KEY + done;
	__u64 differs = 0;

#define KW_COMPARE(word)                                                                        \
	if (left > 8 * (word)) {                                                                \
		__u64 delta = kw_word(ours + 8 * (word)) ^ kw_word(theirs + 8 * (word));        \
		if (left < 8 * (word) + 8)                                                      \
			delta <<= (8 * (8 * (word) + 8 - left)) & 63;                           \
		differs |= delta;                                                               \
	}
	KW_COMPARE(0)
	KW_COMPARE(1)
	KW_COMPARE(2)
	KW_COMPARE(3)
#undef KW_COMPARE
	s->differs |= differs != 0;
	return differs != 0;
}

/* The copy that the index has for the current token, or NULL. Its key is not compared yet. */
KW_INLINE const struct kw_copy *kw_lookup(struct kw_scratch *s)
{
	const struct kw_bucket *bucket = kw_bucket(s->hash);
	__u32 tag = s->hash >> 32;
	const __u8 *page;
	__u32 place = 0, unit;
	int i;

	if (!bucket)
		return 0;
#pragma clang loop unroll(full)
	for (i = 0; i < KW_SLOTS; i++) {
		__u64 slot = *(volatile const __u64 *)&bucket->slot[i];

		if (slot >> 32 == tag && (__u32)slot)
			place = slot;
	}
	if (!place)
		return 0;
	page = kw_page((place >> 10) - 1);
	if (!page)
		return 0;
	unit = place & 1023;
	KW_OPAQUE(unit);
	/* Only copies that begin before this unit end within the page. */
	if (unit > (KW_PAGE - KW_COPY_MAX) / KW_UNIT)
		return 0;
	return (const struct kw_copy *)(page + unit * KW_UNIT);
}

/* Whether `copy` is the token's, current and unexpired: KW_HIT, or why not. `seq` is the copy's number, read before. */
KW_INLINE enum kw_verdict kw_judge(struct kw_context *context, const struct kw_copy *copy, __u32 seq)
{
	struct kw_scratch *s = context->s;
	__u32 len = s->token_end - s->at;
	const __u64 *stripe = kw_stripe(s->hash >> (64 - KW_STRIPE_BITS));
	const __u64 *flushes = kw_stripe(KW_FLUSH);
	__u64 word, flush;

	if (!flushes || !stripe)
		return KW_SILENT;
	if (seq & 1)
		return KW_STALE;
	if (copy->key_len != len)
		return KW_MISS;
	context->copy = copy;
	s->differs = 0;
	kw_loop((len + 31) / 32, kw_compare_step, context);
	if (s->differs)
		return KW_MISS;
	word = *(volatile const __u64 *)stripe;
	flush = *(volatile const __u64 *)flushes;
	if (word != copy->stripe || (__u32)word != word >> 32 || flush != copy->flush || (__u32)flush != flush >> 32)
		return KW_STALE;
	if ((copy->expires_s && copy->expires_s <= s->now_s) || (copy->flush_s && copy->flush_s <= s->now_s))
		return KW_EXPIRED;
	return KW_HIT;
}

#endif
