/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The answer is built in `out`, after room for the headers. The packet is not changed before the answer is complete. */
#ifndef KW_REPLY_H
#define KW_REPLY_H

#include "env.h"
#include "copy.h"
#include "hash.h"
#include "text.h"

/* Appends `len` bytes; -1 if the answer becomes longer than one datagram. */
KW_INLINE int kw_append(struct kw_scratch *s, const void *from, __u32 len)
{
	__u32 end = s->out_end;

	if (len > KW_PAYLOAD_MAX || end > KW_HEAD + KW_PAYLOAD_MAX || end + len > KW_HEAD + KW_PAYLOAD_MAX)
		return -1;
	KW_OPAQUE(len);
	KW_OPAQUE(end);
	kw_move(s->out + KW_AT(end), from, len & (KW_BUFFER - 1));
	s->out_end = end + len;
	return 0;
}

/* Appends `len` bytes of the line of `copy`, from `offset` on; -1 also if they are not within a copy. */
KW_INLINE int kw_append_line(struct kw_scratch *s, const struct kw_copy *copy, __u32 offset, __u32 len)
{
	if (offset + len > KW_COPY_MAX - KW_COPY_HEADER)
		return -1;
	return kw_append(s, (const char *)copy + KW_COPY_HEADER + offset, len);
}

/* Appends the text of `copy`'s CAS unique, without its first `skip` bytes. */
KW_INLINE int kw_append_cas(struct kw_scratch *s, const struct kw_copy *copy, __u32 skip)
{
	__u32 len = copy->cas_len;

	if (len < skip || len > sizeof(copy->cas))
		return -1;
	return kw_append(s, copy->cas + skip, len - skip);
}

/* Appends up to 8 bytes of `word`, lowest first. */
KW_INLINE void kw_append_word(struct kw_scratch *s, __u64 word, __u32 len)
{
	__builtin_memcpy(s->out + KW_AT(s->out_end), &word, 8);
	s->out_end += len;
}

#define KW_VALUE_WORD 0x2045554C4156ull /* "VALUE " */
#define KW_END_WORD 0x0A0D444E45ull     /* "END\r\n" */
#define KW_LINE_END_WORD 0x0A0Dull      /* "\r\n" */

/* Appends the texts of a hit of `get` or `gets`. */
KW_INLINE int kw_append_value(struct kw_scratch *s, const struct kw_copy *copy)
{
	__u32 head = KW_LINE_KEY + copy->key_len + copy->flags_len + copy->size_len;
	__u32 data = copy->value_len + 4; /* with the line ends before and after */

	if (!s->with_cas)
		return kw_append_line(s, copy, 0, head + data);
	if (kw_append_line(s, copy, 0, head) || kw_append_cas(s, copy, 0))
		return -1;
	return kw_append_line(s, copy, head, data);
}

/* One key of `get` or `gets`. */
KW_CALLBACK long kw_get_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	struct kw_context inner = { .s = s };
	const struct kw_copy *copy;
	enum kw_verdict verdict;
	__u32 seq;
	int more;

	s->verdict = KW_ODD_REQUEST;
	if (kw_token(&inner, KW_KEY_MAX))
		return 1;
	kw_hash(&inner, s->seed);
	s->verdict = KW_MISS;
	copy = kw_lookup(s);
	if (!copy)
		return 1;
	seq = *(volatile const __u32 *)&copy->seq;
	kw_read_barrier();
	verdict = kw_judge(&inner, copy, seq);
	if (verdict == KW_HIT && kw_append_value(s, copy))
		verdict = KW_TOO_LONG;
	kw_read_barrier();
	if (*(volatile const __u32 *)&copy->seq != seq)
		verdict = KW_STALE;
	s->verdict = verdict;
	if (verdict != KW_HIT)
		return 1;
	kw_mark(copy);
	s->answered++;
	more = kw_next(s);
	if (more)
		s->verdict = KW_ODD_REQUEST; /* one key too many, unless a further step sets another verdict */
	return more != 1;
}

KW_INLINE enum kw_verdict kw_get(struct kw_context *context)
{
	struct kw_scratch *s = context->s;

	kw_loop(KW_KEYS_MAX, kw_get_step, context);
	if (s->verdict != KW_HIT)
		return s->verdict;
	if (s->out_end + 5 > KW_HEAD + KW_PAYLOAD_MAX)
		return KW_TOO_LONG;
	kw_append_word(s, KW_END_WORD, 5);
	return KW_HIT;
}

/* Appends " t<seconds>". */
KW_INLINE int kw_append_ttl(struct kw_scratch *s, const struct kw_copy *copy)
{
	__u32 ttl, digits = 0;
	__u64 text = 0;
	int i;

	if (!copy->expires_s) {
		kw_append_word(s, 0x312D7420ull /* " t-1" */, 4);
		return 0;
	}
	/* The copy was found unexpired for this same second. */
	ttl = copy->expires_s - (__u32)s->now_s;
	/* Numbers up to 8 digits, three years, fit into a word; the rest is left to user space. */
	if (ttl > 99999999)
		return -1;
#pragma clang loop unroll(full)
	for (i = 0; i < 8; i++) {
		if (i == 0 || ttl) {
			text = text << 8 | ('0' + ttl % 10);
			ttl /= 10;
			digits++;
		}
	}
	kw_append_word(s, 0x7420ull /* " t" */, 2);
	kw_append_word(s, text, digits);
	return 0;
}

/* One flag of `mg`. */
KW_CALLBACK long kw_flag_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	struct kw_context inner = { .s = s };
	const struct kw_copy *copy = context->copy;
	__u32 len, key, flags;
	__u8 letter;
	int more, failed = 0;

	s->verdict = KW_ODD_REQUEST;
	if (kw_token(&inner, KW_OPAQUE_MAX + 1))
		return 1;
	len = s->token_end - s->at;
	letter = s->in[KW_AT(s->at)];
	if (letter < 'A' || letter > 'z' || s->seen >> (letter - 'A') & 1 || (len > 1 && letter != 'O'))
		return 1;
	s->seen |= 1ull << (letter - 'A');
	if (s->out_end + 4 > KW_HEAD + KW_PAYLOAD_MAX) {
		s->verdict = KW_TOO_LONG;
		return 1;
	}
	key = copy->key_len;
	flags = copy->flags_len;
	switch (letter) {
	case 'v':
	case 'q':
		break;
	case 'k':
		kw_append_word(s, 0x6B20ull, 2);
		failed = kw_append_line(s, copy, KW_LINE_KEY, key);
		break;
	case 'f':
		kw_append_word(s, 0x6620ull, 2);
		failed = flags < 2 || kw_append_line(s, copy, KW_LINE_KEY + key + 1, flags - 1);
		break;
	case 's':
		kw_append_word(s, 0x7320ull, 2);
		failed = copy->size_len < 2 ||
			 kw_append_line(s, copy, KW_LINE_KEY + key + flags + 1, copy->size_len - 1);
		break;
	case 'c':
		kw_append_word(s, 0x6320ull, 2);
		failed = kw_append_cas(s, copy, 1);
		break;
	case 'O':
		kw_append_word(s, ' ', 1);
		failed = kw_append(s, s->in + KW_AT(s->at), len);
		break;
	case 't':
		if (kw_append_ttl(s, copy))
			return 1;
		break;
	default:
		return 1;
	}
	if (failed) {
		s->verdict = KW_TOO_LONG;
		return 1;
	}
	more = kw_next(s);
	if (more == 0)
		s->verdict = KW_HIT;
	return more != 1;
}

/* Whether a word of `mg` that begins at `s->at` or later is "v": the answer's first word depends on it. */
KW_CALLBACK long kw_value_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	struct kw_context inner = { .s = s };

	if (kw_token(&inner, KW_OPAQUE_MAX + 1))
		return 1;
	if (s->token_end - s->at == 1 && s->in[KW_AT(s->at)] == 'v')
		s->differs = 1;
	return kw_next(s) != 1;
}

/* Appends "VA <bytes>" or "HD", the flags, and the value. */
KW_INLINE enum kw_verdict kw_append_meta(struct kw_context *context, const struct kw_copy *copy)
{
	struct kw_scratch *s = context->s;
	__u32 head = KW_LINE_KEY + copy->key_len + copy->flags_len + copy->size_len;
	__u32 first, with_value;
	int more = kw_next(s);

	if (more < 0)
		return KW_ODD_REQUEST;
	first = s->at;
	s->differs = 0;
	if (more)
		kw_loop(KW_FLAGS_MAX, kw_value_step, context);
	with_value = s->differs;
	s->at = first;
	if (with_value) {
		kw_append_word(s, 0x4156ull /* "VA" */, 2);
		if (kw_append_line(s, copy, head - copy->size_len, copy->size_len))
			return KW_TOO_LONG;
	} else {
		kw_append_word(s, 0x4448ull /* "HD" */, 2);
	}
	s->seen = 0;
	s->verdict = KW_HIT;
	context->copy = copy;
	if (more)
		kw_loop(KW_FLAGS_MAX, kw_flag_step, context);
	if (s->verdict != KW_HIT)
		return s->verdict;
	if (with_value)
		return kw_append_line(s, copy, head, copy->value_len + 4) ? KW_TOO_LONG : KW_HIT;
	if (s->out_end + 2 > KW_HEAD + KW_PAYLOAD_MAX)
		return KW_TOO_LONG;
	kw_append_word(s, KW_LINE_END_WORD, 2);
	return KW_HIT;
}

KW_INLINE enum kw_verdict kw_meta_get(struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	const struct kw_copy *copy;
	enum kw_verdict verdict;
	__u32 seq;

	if (kw_token(context, KW_KEY_MAX))
		return KW_ODD_REQUEST;
	kw_hash(context, s->seed);
	copy = kw_lookup(s);
	if (!copy)
		return KW_MISS;
	seq = *(volatile const __u32 *)&copy->seq;
	kw_read_barrier();
	verdict = kw_judge(context, copy, seq);
	if (verdict == KW_HIT)
		verdict = kw_append_meta(context, copy);
	kw_read_barrier();
	if (*(volatile const __u32 *)&copy->seq != seq)
		verdict = KW_STALE;
	if (verdict == KW_HIT) {
		kw_mark(copy);
		s->answered++;
	}
	return verdict;
}

/* Appends the answer to the line that begins at `from`, with its line feed at `end`. */
KW_INLINE enum kw_verdict kw_answer_line(struct kw_context *context, __u32 from, __u32 end)
{
	struct kw_scratch *s = context->s;

	switch (kw_command(s, from, end)) {
	case KW_GET:
		s->with_cas = 0;
		return kw_get(context);
	case KW_GETS:
		s->with_cas = 1;
		return kw_get(context);
	case KW_MG:
		return kw_meta_get(context);
	default:
		return KW_ODD_REQUEST;
	}
}

/* Answers the request of `len` bytes in `in`: one line. */
KW_INLINE enum kw_verdict kw_answer(struct kw_context *context, __u32 len)
{
	struct kw_scratch *s = context->s;
	__u32 end = KW_HEAD + len - 1;

	s->out_end = KW_HEAD;
	if (s->in[KW_AT(end)] != '\n')
		return KW_ODD_REQUEST;
	return kw_answer_line(context, KW_HEAD, end);
}

/* One of several requests. */
KW_CALLBACK long kw_line_step(__u32 index, struct kw_context *context)
{
	struct kw_context inner = { .s = context->s };
	struct kw_scratch *s = context->s;
	__u32 data_end = s->data_end;

	s->line_end = 0;
	s->lines = KW_ODD_REQUEST;
	kw_loop((KW_PAYLOAD_MAX + 31) / 32, kw_feed_step, &inner);
	if (s->line_end <= s->line || s->line_end >= data_end)
		return 1;
	s->lines = kw_answer_line(&inner, s->line, s->line_end);
	s->line = s->line_end + 1;
	/* One request too many, unless a further step sets another verdict. */
	if (s->lines == KW_HIT && s->line < data_end)
		s->lines = KW_ODD_REQUEST;
	else
		return 1;
	return 0;
}

/* Answers the `len` bytes in `in`: whole lines, in their order, each of which can be answered. */
KW_INLINE enum kw_verdict kw_answer_lines(struct kw_context *context, __u32 len)
{
	struct kw_scratch *s = context->s;

	s->out_end = KW_HEAD;
	s->line = KW_HEAD;
	s->answered = 0;
	s->data_end = KW_HEAD + len;
	kw_loop(KW_LINES_MAX, kw_line_step, context);
	return s->lines;
}

#endif
