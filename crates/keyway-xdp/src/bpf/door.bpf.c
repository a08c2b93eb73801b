/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The kernel door: answers UDP requests for hot items before any socket sees them.
 *
 * `kw_tc` runs at TC ingress of an interface. It checks whether a packet is for the served address and port, copies it
 * to memory of this CPU and decides there. It changes the packet only when the answer is complete. A packet that it does not
 * fully understand is passed up unchanged.
 *
 * The network stack decides where an answer goes, not the frame: its sender can write any source into it. `kw_sent` runs
 * at TC egress, and records by which interface, and to which link address, this host's own answers leave for each source. Only a
 * request that arrived by that interface is answered, and its answer goes to that link address. On `lo`, every packet was sent by
 * this host.
 *
 * Loops: an answer is no request (it begins with VALUE, VA or HD), so an answer that comes back here is passed up.
 */
#include "env.h"

#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

/* In a section that holds nothing else: the loader fills it as a whole. */
const volatile struct kw_config config SEC(".rodata.config") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* the loader sets the number */
	__type(key, __u32);
	__type(value, struct kw_bucket);
} kw_index SEC(".maps");

struct kw_page_value {
	__u8 bytes[KW_PAGE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kw_page_value);
} kw_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, KW_FLUSH + 1);
	__type(key, __u32);
	__type(value, __u64);
} kw_stripes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kw_control);
} kw_controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kw_scratch);
} kw_scratches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KW_VERDICTS);
	__type(key, __u32);
	__type(value, __u64);
} kw_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KW_TIMED_ROWS);
	__type(key, __u32);
	__type(value, struct kw_times);
} kw_times SEC(".maps");

struct kw_address {
	__u32 words[4];
};

/* The time at which a source has all its saved-up answers again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct kw_address);
	__type(value, __u64);
} kw_sources SEC(".maps");

/* How this host sends to a target. */
struct kw_path_key {
	__u32 target[4];
	__u32 interface;
};

struct kw_path {
	__u64 until_ns;
	/* destination and source of the frame, as it was sent */
	__u8 link[12];
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct kw_path_key);
	__type(value, struct kw_path);
} kw_paths SEC(".maps");

/* The number of `lo`, in every network namespace (Linux, LOOPBACK_IFINDEX). */
#define KW_LOOPBACK 1

KW_INLINE const volatile struct kw_config *kw_config(void)
{
	return &config;
}

KW_INLINE const struct kw_bucket *kw_bucket(__u64 hash)
{
	__u32 key = (__u32)hash & config.bucket_mask;

	return bpf_map_lookup_elem(&kw_index, &key);
}

KW_INLINE const __u8 *kw_page(__u32 page)
{
	return bpf_map_lookup_elem(&kw_pages, &page);
}

KW_INLINE const __u64 *kw_stripe(__u32 stripe)
{
	return bpf_map_lookup_elem(&kw_stripes, &stripe);
}

KW_INLINE const struct kw_control *kw_control(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&kw_controls, &key);
}

KW_INLINE __u64 kw_clock(void)
{
	return bpf_ktime_get_ns();
}

/* bpf_csum_diff() takes at most 512 bytes at a time, a multiple of 4. */
KW_INLINE __u32 kw_sum(__u8 *from, __u32 len, __u32 sum)
{
	__u32 piece, end = len;
	int i;

	KW_OPAQUE(end); /* otherwise clang drops the mask, and Linux 6.1 has lost the bound by now */
	*(__u32 *)(from + (end & (KW_BUFFER - 1))) = 0;
#pragma clang loop unroll(full)
	for (i = 0; i < 3; i++) {
		if (len > i * 512u) {
			piece = len - i * 512u;
			if (piece > 512)
				piece = 512;
			piece = (piece + 3) & ~3u;
			KW_OPAQUE(piece);
			if (piece <= 512)
				sum = bpf_csum_diff(0, 0, (__be32 *)(from + i * 512u), piece, sum);
		}
	}
	return sum;
}

/* The generic cell rate algorithm (ITU-T I.371): one word per source. Two CPUs at once may allow one answer too many. */
KW_INLINE int kw_is_over_rate(const __u32 source[4], __u64 now)
{
	struct kw_address key;
	__u64 *known, due;

	if (!config.answer_ns)
		return 0;
	__builtin_memcpy(&key, source, sizeof(key));
	known = bpf_map_lookup_elem(&kw_sources, &key);
	due = known && *known > now ? *known : now;
	if (due - now > config.burst_ns)
		return 1;
	due += config.answer_ns;
	if (known)
		*known = due;
	else
		bpf_map_update_elem(&kw_sources, &key, &due, BPF_ANY);
	return 0;
}

KW_INLINE int kw_has_path(struct kw_scratch *s, const __u8 *frame, const __u32 source[4], __u64 now)
{
	struct kw_path_key key = { .interface = s->interface };
	const struct kw_path *path;

	if (s->interface == KW_LOOPBACK) {
		kw_turn_link(s, frame);
		return 1;
	}
	__builtin_memcpy(key.target, source, sizeof(key.target));
	path = bpf_map_lookup_elem(&kw_paths, &key);
	if (!path || path->until_ns <= now)
		return 0;
	__builtin_memcpy(s->link, path->link, 12);
	return 1;
}

#include "packet.h"
#include "times.h"

KW_INLINE int kw_link_differs(const __u8 *a, const __u8 *b)
{
	return kw_quad(a) != kw_quad(b) || kw_quad(a + 4) != kw_quad(b + 4) || kw_quad(a + 8) != kw_quad(b + 8);
}

/* Whether a frame between `data` and `data_end` is worth a copy: 4, 6, or 0. Packets for others must cost little. */
KW_INLINE int kw_family(const __u8 *data, const __u8 *data_end)
{
	if (data + KW_FRAME4 > data_end)
		return 0;
	if (kw_half(data + 12) == bpf_htons(ETH_P_IP))
		return config.address4 && data[14] == 0x45 && data[23] == KW_PROTOCOL_UDP && kw_half(data + 36) == config.port ? 4 : 0;
	if (kw_half(data + 12) != bpf_htons(ETH_P_IPV6) || data + KW_FRAME6 > data_end || !config.address6[3])
		return 0;
	return data[20] == KW_PROTOCOL_UDP && kw_half(data + 56) == config.port ? 6 : 0;
}

KW_INLINE struct kw_scratch *kw_scratch(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&kw_scratches, &key);
}

KW_INLINE void kw_count_several(enum kw_verdict verdict, __u32 number)
{
	__u32 key = verdict;
	__u64 *count = bpf_map_lookup_elem(&kw_counts, &key);

	if (count && verdict != KW_NOT_OURS)
		*count += number;
}

KW_INLINE void kw_count(enum kw_verdict verdict)
{
	kw_count_several(verdict, 1);
}

/* Times a packet after random intervals, so that no pattern of requests is preferred. */
KW_INLINE void kw_begin(struct kw_timer *timer)
{
	timer->begun_ns = 0;
	if (timer->until_timed) {
		timer->until_timed--;
		return;
	}
	timer->until_timed = bpf_get_prandom_u32() % (2 * KW_TIMED_ONE_IN - 1);
	timer->begun_ns = kw_clock();
}

/* The packet has its answer, or the run is over. */
static __noinline int kw_note_time(__u64 begun_ns, __u32 row)
{
	__u64 ns = kw_clock() - begun_ns;
	struct kw_times *times = bpf_map_lookup_elem(&kw_times, &row);
	__u32 bucket = kw_time_bucket(ns);

	KW_OPAQUE(bucket);
	if (!times || bucket >= KW_TIME_BUCKETS)
		return 0;
	times->counts[bucket]++;
	times->sum_ns += ns;
	return 0;
}

KW_INLINE void kw_took(const struct kw_timer *timer, enum kw_timed row)
{
	if (timer->begun_ns)
		kw_note_time(timer->begun_ns, row);
}

/* A separate function, so that the verifier checks it once for each family and not for each path to it. */
static __noinline int kw_decide4(struct kw_scratch *s, __u32 len)
{
	return kw_decide(s, len, 0);
}

static __noinline int kw_decide6(struct kw_scratch *s, __u32 len)
{
	return kw_decide(s, len, 1);
}

/* Longest frame that is copied: one byte longer than any request, so that longer frames are recognised. */
#define KW_FRAME_MAX (KW_FRAME6 + 8 + KW_PAYLOAD_MAX + 4)

/* Answers the datagram in the packet, or passes it up. */
KW_INLINE int kw_udp_receive(struct __sk_buff *skb, struct kw_scratch *s, int family)
{
	__u32 len = skb->len, start = family == 4 ? KW_START4 : KW_START6, reply_len;
	int verdict;

	/* One packet may be several datagrams that were sent together (UDP_SEGMENT); its headers do not show it. */
	if (skb->vlan_present || skb->gso_size || skb->pkt_type != 0 /* PACKET_HOST */ || len < KW_FRAME4 || len > KW_FRAME_MAX) {
		kw_count(KW_ODD_PACKET);
		return TC_ACT_UNSPEC;
	}
	s->interface = skb->ifindex;
	KW_OPAQUE(len);
	if (len < KW_FRAME4 || len > KW_FRAME_MAX)
		return TC_ACT_UNSPEC;
	if (family == 4) {
		verdict = bpf_skb_load_bytes(skb, 0, s->in + KW_START4, len) ? KW_ODD_PACKET : kw_decide4(s, len);
	} else {
		verdict = bpf_skb_load_bytes(skb, 0, s->in + KW_START6, len) ? KW_ODD_PACKET : kw_decide6(s, len);
	}
	if (verdict != KW_HIT) {
		kw_count(verdict);
		return TC_ACT_UNSPEC;
	}
	/* No other path may join this one before the answer is stored: the verifier of Linux 6.1 would forget the bounds. */
	reply_len = s->out_end - start;
	KW_OPAQUE(reply_len);
	if (reply_len < KW_FRAME4 || reply_len > KW_FRAME_MAX || bpf_skb_change_tail(skb, reply_len, 0)) {
		kw_count(KW_NO_ROOM);
		return TC_ACT_UNSPEC;
	}
	kw_count(KW_HIT);
	if (family == 4 ? bpf_skb_store_bytes(skb, 0, s->out + KW_START4, reply_len, 0) :
			  bpf_skb_store_bytes(skb, 0, s->out + KW_START6, reply_len, 0))
		return TC_ACT_SHOT;
	kw_took(&s->timer, KW_TIMED_UDP);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tc")
int kw_tc(struct __sk_buff *skb)
{
	int family = kw_family((void *)(long)skb->data, (void *)(long)skb->data_end), action;
	struct kw_scratch *s;

	if (!family)
		return TC_ACT_UNSPEC;
	s = kw_scratch();
	if (!s)
		return TC_ACT_UNSPEC;
	kw_begin(&s->timer);
	action = kw_udp_receive(skb, s, family);
	kw_took(&s->timer, KW_TIMED_UDP_RUN);
	return action;
}

/* Learns for `kw_tc` where answers go, from what this host itself sends from the served address and port. Changes no packet. */
SEC("tc")
int kw_sent(struct __sk_buff *skb)
{
	const __u8 *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct kw_path_key key = { .interface = skb->ifindex };
	struct kw_path path = {}, *known;
	__u64 now;

	/* A packet that is forwarded, or that `kw_tc` has made from a request, arrived by some interface. */
	if (skb->ingress_ifindex || skb->vlan_present || data + KW_FRAME4 > data_end)
		return TC_ACT_UNSPEC;
	if (kw_half(data + 12) == bpf_htons(ETH_P_IP)) {
		if (!config.address4 || data[14] != 0x45 || data[23] != KW_PROTOCOL_UDP || kw_half(data + 34) != config.port ||
		    kw_quad(data + 26) != config.address4)
			return TC_ACT_UNSPEC;
		key.target[2] = 0xFFFF0000;
		key.target[3] = kw_quad(data + 30);
	} else {
		if (kw_half(data + 12) != bpf_htons(ETH_P_IPV6) || data + KW_FRAME6 > data_end || !config.address6[3])
			return TC_ACT_UNSPEC;
		if (data[20] != KW_PROTOCOL_UDP || kw_half(data + 54) != config.port || kw_quad(data + 22) != config.address6[0] ||
		    kw_quad(data + 26) != config.address6[1] || kw_quad(data + 30) != config.address6[2] ||
		    kw_quad(data + 34) != config.address6[3])
			return TC_ACT_UNSPEC;
		__builtin_memcpy(key.target, data + 38, 16);
	}
	now = kw_clock();
	__builtin_memcpy(path.link, data, 12);
	known = bpf_map_lookup_elem(&kw_paths, &key);
	/* Not one update per packet. */
	if (known && known->until_ns > now + KW_PATH_NS / 2 && !kw_link_differs(known->link, path.link))
		return TC_ACT_UNSPEC;
	path.until_ns = now + KW_PATH_NS;
	bpf_map_update_elem(&kw_paths, &key, &path, BPF_ANY);
	return TC_ACT_UNSPEC;
}

#include "tcp.bpf.h"

/* The kernel offers bpf_probe_read_kernel() and its clock to programs under the GPL only: the files of this folder are under
 * the two-clause BSD licence or the GPL, version 2, as the user chooses. */
char _license[] SEC("license") = "Dual BSD/GPL";
