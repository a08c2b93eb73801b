/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Reading a request: one line of `get`, `gets` or `mg`, and its words.
 *
 * Words are separated by one space. Everything else that memcached accepts (runs of spaces, other control characters, flags
 * with arguments that it ignores) is left to user space.
 */
#ifndef KW_TEXT_H
#define KW_TEXT_H

#include "env.h"

/* Marks with 0x80 each byte of `word` below '!': spaces and control characters. Exact for the lowest one, which counts. */
KW_INLINE __u64 kw_blanks(__u64 word)
{
	return (word - 0x2121212121212121ull) & ~word & 0x8080808080808080ull;
}

/* The number of the lowest marked byte; `marks` is not 0. */
KW_INLINE __u32 kw_lowest(__u64 marks)
{
	__u64 below = (marks & -marks) - 1;

	return (__u32)(((below & 0x0101010101010101ull) * 0x0101010101010101ull) >> 56) - 1;
}

/* Looks for a blank in the next 32 bytes. */
KW_CALLBACK long kw_scan_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	__u32 from = s->at + index * 32;
	const __u8 *bytes = s->in + KW_AT(from);
	__u64 marks;

#define KW_SCAN(word)                                              \
	marks = kw_blanks(kw_word(bytes + 8 * (word)));            \
	if (marks) {                                               \
		s->token_end = from + 8 * (word) + kw_lowest(marks); \
		return 1;                                          \
	}
	KW_SCAN(0)
	KW_SCAN(1)
	KW_SCAN(2)
	KW_SCAN(3)
#undef KW_SCAN
	return 0;
}

/* Finds the word that begins at `s->at`; 0 if it is a word of 1 to `len_max` bytes, ended by a space or by the line's end. */
KW_INLINE int kw_token(struct kw_context *context, __u32 len_max)
{
	struct kw_scratch *s = context->s;
	__u32 len;

	s->token_end = 0;
	kw_loop((KW_KEY_MAX + 32) / 32, kw_scan_step, context);
	len = s->token_end - s->at;
	if (s->token_end <= s->at || len > len_max || s->token_end > s->end)
		return -1;
	if (s->token_end < s->end && s->in[KW_AT(s->token_end)] != ' ')
		return -1;
	return 0;
}

/* Moves to the word after the current one; 1 if there is one, 0 at the line's end, -1 if nothing follows a space. */
KW_INLINE int kw_next(struct kw_scratch *s)
{
	if (s->token_end == s->end)
		return 0;
	s->at = s->token_end + 1;
	return s->at < s->end ? 1 : -1;
}

enum kw_command {
	KW_NONE,
	KW_GET,
	KW_GETS,
	KW_MG,
};

/* Removes the line's end from the line that begins at `from`, with its line feed at `end`, and the command from its front. */
KW_INLINE enum kw_command kw_command(struct kw_scratch *s, __u32 from, __u32 end)
{
	__u64 word = kw_word(s->in + KW_AT(from));

	if (end < from + 4)
		return KW_NONE;
	if (s->in[KW_AT(end - 1)] == '\r')
		end--;
	s->end = end;
	if ((word & 0xFFFFFFFFull) == 0x20746567ull) { /* "get " */
		s->at = from + 4;
		return s->at < end ? KW_GET : KW_NONE;
	}
	if ((word & 0xFFFFFFFFFFull) == 0x2073746567ull) { /* "gets " */
		s->at = from + 5;
		return s->at < end ? KW_GETS : KW_NONE;
	}
	if ((word & 0xFFFFFFull) == 0x20676Dull) { /* "mg " */
		s->at = from + 3;
		return s->at < end ? KW_MG : KW_NONE;
	}
	return KW_NONE;
}

/* Looks for a line feed in the next 32 bytes. */
KW_CALLBACK long kw_feed_step(__u32 index, struct kw_context *context)
{
	struct kw_scratch *s = context->s;
	__u32 from = s->line + index * 32;
	const __u8 *bytes = s->in + KW_AT(from);
	__u64 differs, marks;

#define KW_FEED(word)                                                                      \
	differs = kw_word(bytes + 8 * (word)) ^ 0x0A0A0A0A0A0A0A0Aull;                     \
	marks = (differs - 0x0101010101010101ull) & ~differs & 0x8080808080808080ull;      \
	if (marks) {                                                                       \
		s->line_end = from + 8 * (word) + kw_lowest(marks);                        \
		return 1;                                                                  \
	}
	KW_FEED(0)
	KW_FEED(1)
	KW_FEED(2)
	KW_FEED(3)
#undef KW_FEED
	return 0;
}

#endif
