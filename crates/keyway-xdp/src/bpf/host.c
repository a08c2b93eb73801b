/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The program's headers on the host: the same reading, hashing and answering, over memory that a test provides. */
#include "env.h"

#include <stddef.h>

/* The counterparts of the kernel's maps. */
struct kw_host {
	const struct kw_bucket *index;
	const __u8 *pages;
	const __u64 *stripes;
	const struct kw_control *control;
	const struct kw_config *config;
	__u64 now_ns;
	__u32 sources_over_rate;
	__u32 no_path;
};

static _Thread_local const struct kw_host *host;

KW_INLINE const volatile struct kw_config *kw_config(void)
{
	return host->config;
}

KW_INLINE const struct kw_bucket *kw_bucket(__u64 hash)
{
	return host->index + ((__u32)hash & host->config->bucket_mask);
}

KW_INLINE const __u8 *kw_page(__u32 page)
{
	return page < host->config->pages ? host->pages + (size_t)page * KW_PAGE : NULL;
}

KW_INLINE const __u64 *kw_stripe(__u32 stripe)
{
	return stripe <= KW_FLUSH ? host->stripes + stripe : NULL;
}

KW_INLINE const struct kw_control *kw_control(void)
{
	return host->control;
}

KW_INLINE __u64 kw_clock(void)
{
	return host->now_ns;
}

KW_INLINE __u32 kw_sum(__u8 *from, __u32 len, __u32 sum)
{
	__u64 wide = sum;
	__u32 i;

	from[len] = 0;
	for (i = 0; i < len; i += 2)
		wide += from[i] | from[i + 1] << 8;
	while (wide >> 32)
		wide = (wide & 0xFFFFFFFF) + (wide >> 32);
	return wide;
}

KW_INLINE int kw_is_over_rate(const __u32 source[4], __u64 now)
{
	(void)source;
	(void)now;
	return host->sources_over_rate;
}

KW_INLINE int kw_has_path(struct kw_scratch *s, const __u8 *frame, const __u32 source[4], __u64 now)
{
	(void)source;
	(void)now;
	kw_turn_link(s, frame);
	return !host->no_path;
}

#include "packet.h"

size_t kw_host_scratch_size(void)
{
	return sizeof(struct kw_scratch);
}

/* The hash of a key of up to 250 bytes. */
__u64 kw_host_hash(struct kw_scratch *s, __u64 seed, const __u8 *key, __u32 len)
{
	struct kw_context context = { .s = s };

	memcpy(s->in + KW_HEAD, key, len);
	s->at = KW_HEAD;
	s->token_end = KW_HEAD + len;
	kw_hash(&context, seed);
	return s->hash;
}

/* Decides on a frame, and returns where its answer is. */
int kw_host_decide(const struct kw_host *with, struct kw_scratch *s, const __u8 *frame, __u32 len, int v6, const __u8 **answer,
		   __u32 *answer_len)
{
	__u32 start = v6 ? KW_START6 : KW_START4;
	int verdict;

	host = with;
	if (len < (v6 ? KW_FRAME6 : KW_FRAME4) || len > KW_BUFFER - KW_HEAD)
		return KW_ODD_PACKET;
	memcpy(s->in + start, frame, len);
	verdict = kw_decide(s, len, v6);
	*answer = s->out + start;
	*answer_len = verdict == KW_HIT ? s->out_end - start : 0;
	return verdict;
}
