// keyway.h: a memcached-compatible cache in shared memory, as C functions.
//
// Link with -lkeyway (pkg-config keyway). What a process must not do is in docs/library.md. Generated: edit the sources.

#ifndef KEYWAY_H
#define KEYWAY_H

#include <stddef.h>
#include <stdint.h>

// Longest key, bytes.
#define KEYWAY_KEY_LENGTH_MAX 250

// Size of a statistic's name, its zero byte included.
#define KEYWAY_STAT_NAME_SIZE 32

// Option: ask for huge pages.
#define KEYWAY_HUGE_PAGES 2

// Option: fault every page in at the open instead of at its first use.
#define KEYWAY_PREFAULT 4

// Option: no gate. The region's mapping stays accessible outside calls even if the processor has protection keys. The
// environment variable KEYWAY_GATE, off or on, overrides this.
#define KEYWAY_NO_GATE 64

// Option: if the region is full, stores fail instead of evicting. A rule of a new region, for all its users; an existing one
// keeps its own.
#define KEYWAY_NO_EVICT 8

// Option: every item of a new region has a checksum, which every reader verifies; an existing region must have been made
// with it.
#define KEYWAY_CHECKSUMS 16

// Option: use the region even if another user owns its file, or its mode lets every user write to it. Such a user can change
// items at any time, and end this process by truncating the file (SIGBUS).
#define KEYWAY_ANY_OWNER 128

// Fetch: do not wait for another caller.
#define KEYWAY_FETCH_NO_WAIT 1

// Fetch: when the wait is over, do not compute: the result is KEYWAY_IN_FLIGHT.
#define KEYWAY_FETCH_GIVE_UP 2

// Fetch: other tasks of this thread may be computing, so a key that the thread computes is waited for. Without it that is
// KEYWAY_ERROR_BUSY.
#define KEYWAY_FETCH_TASKS 4

// The result of a call. Results below KEYWAY_ERROR_ARGUMENT are answers. The others are failures, and keyway_message() says
// what was wrong, which limit applies and what to do.
typedef enum keyway_result {
    // done
    KEYWAY_OK = 0,
    // there is no such item; fetch: it is remembered that there is no value
    KEYWAY_NOT_FOUND = 1,
    // add: there is one already; replace, append, prepend: there is none; fetch: the token is void
    KEYWAY_NOT_STORED = 2,
    // cas: the item has changed since its CAS unique was read
    KEYWAY_EXISTS = 3,
    // fetch: an old value, while another caller computes the next one
    KEYWAY_STALE = 4,
    // fetch: there is no value, and the caller computes it
    KEYWAY_COMPUTE = 5,
    // fetch: another caller computes, and the wait is over
    KEYWAY_IN_FLIGHT = 6,
    // fetch: as many as the limit allows compute, and the wait is over
    KEYWAY_LIMITED = 7,
    // an argument is invalid: NULL where a pointer is needed, or a value that is not allowed
    KEYWAY_ERROR_ARGUMENT = 16,
    // a key is empty or longer than KEYWAY_KEY_LENGTH_MAX
    KEYWAY_ERROR_KEY_LENGTH = 17,
    // the item is larger than the largest allowed
    KEYWAY_ERROR_TOO_LARGE = 18,
    // the value does not fit the buffer; its length is in the item
    KEYWAY_ERROR_BUFFER_TOO_SMALL = 19,
    // incr, decr: the value is not a decimal number below 2^64
    KEYWAY_ERROR_NOT_A_NUMBER = 20,
    // the region is full and nothing can be evicted, or this process has no memory for a copy
    KEYWAY_ERROR_OUT_OF_MEMORY = 21,
    // there is no region at this place, and no memory was requested for a new one; or no server answers
    KEYWAY_ERROR_ABSENT = 22,
    // the file at this place is not a region that this library can use: another version, truncated, or another kind of file
    KEYWAY_ERROR_UNUSABLE = 23,
    // there is not enough space for the region, or for the requested memory
    KEYWAY_ERROR_NO_SPACE = 24,
    // all slots of the region for processes or threads are taken
    KEYWAY_ERROR_FULL = 25,
    // this thread is already inside a call, or computes the key that it fetches; or another process is replacing the region
    KEYWAY_ERROR_BUSY = 26,
    // shared memory is corrupted: it holds a value that no version of Keyway writes
    KEYWAY_ERROR_DAMAGED = 27,
    // the operating system refused something
    KEYWAY_ERROR_SYSTEM = 28,
    // the server does not hand out its region to this process; or the server has a kernel door, and this process cannot
    // count its changes for it; or the region is not to be flushed
    KEYWAY_ERROR_REFUSED = 29,
    // a bug in Keyway: the library caught a panic
    KEYWAY_ERROR_BUG = 30,
} keyway_result;

// An open cache. All threads may use it at the same time. A thread needs no setup.
typedef struct keyway keyway;

// The right, and the duty, to compute the value of a key: keyway_fetch_store(), keyway_fetch_store_nothing() and
// keyway_fetch_abandon() free it.
typedef struct keyway_fetch_token keyway_fetch_token;

// How to open a cache. Zeros mean the defaults, so set `size` and the fields that you want to change, and nothing else:
// `keyway_options options = {.size = sizeof options, .memory = 1 << 30};`
typedef struct keyway_options {
    // sizeof(keyway_options)
    size_t size;
    // size of the region in bytes, everything included, at least 2 MiB: an absent region is made, and a smaller existing one
    // grows to it. 0: an existing region keeps its size, and an absent one is an error (KEYWAY_ERROR_ABSENT); anonymous
    // memory has 64 MiB
    uint64_t memory;
    // largest item, bytes, counted as memcached counts (its -I), 1 KiB to 1 GiB and at most half of the memory. A rule of a new
    // region, for all its users; an existing one keeps its own. 0: 1 MiB
    uint64_t item_size_max;
    // file mode of a new region. 0: 0600
    uint32_t mode;
    // the sum of options, such as KEYWAY_CHECKSUMS
    uint32_t flags;
} keyway_options;

// Properties of an item, in addition to its key and value.
typedef struct keyway_item {
    // length of the value, bytes
    size_t value_len;
    // its CAS unique, for keyway_cas(); keyway_get() and fetches do not read it and give 0
    uint64_t cas;
    // seconds until it expires; -1: never
    int64_t ttl_s;
    // its flags, as stored
    uint32_t flags;
} keyway_item;

// One key of a keyway_get_many(), and its result.
typedef struct keyway_entry {
    // input: the key
    const void *key;
    // input: its length, bytes
    size_t key_len;
    // output: KEYWAY_OK, KEYWAY_NOT_FOUND or a failure
    enum keyway_result result;
    // output if KEYWAY_OK: the item
    struct keyway_item item;
    // output if KEYWAY_OK: the value, with a zero byte after it, in the block of this call. NULL otherwise
    const char *value;
} keyway_entry;

// How to fetch, with the words of RFC 5861. Zeros mean the defaults: set `size` and the fields that you want to change:
// `keyway_fetch_options options = {.size = sizeof options, .exptime = 60};`
typedef struct keyway_fetch_options {
    // sizeof(keyway_fetch_options)
    size_t size;
    // how long a value is fresh: memcached's exptime. 0: for ever
    int64_t exptime;
    // XFetch's beta: a value is refreshed before it expires, by chance, the likelier the longer it took to compute. 1 is usual,
    // 0: never
    double early;
    // longest wait for another caller, milliseconds; then the caller computes. 0: 10000
    uint64_t wait_ms;
    // what names the limit: usually the beginning of its keys
    const void *limit_prefix;
    // its length, bytes; the first KEYWAY_KEY_LENGTH_MAX count
    size_t limit_prefix_len;
    // how many callers of all processes compute at a time under this limit, 1 to 63. 0: there is no limit
    uint32_t limit;
    // the sum of options, such as KEYWAY_FETCH_NO_WAIT
    uint32_t options;
    // flags of the item that is stored, for the caller
    uint32_t flags;
    // how long it is remembered that there is no value, seconds. 0: not at all
    uint32_t negative_ttl_s;
    // so many seconds after its time the old value is returned while another caller computes the next one
    uint32_t stale_while_revalidate_s;
    // so many seconds after its time the old value may be used if computing fails
    uint32_t stale_if_error_s;
} keyway_fetch_options;

// A statistic of keyway_stats().
typedef struct keyway_stat {
    // its name, the same as in memcached's `stats` if memcached has it
    char name[KEYWAY_STAT_NAME_SIZE];
    // its value
    uint64_t value;
} keyway_stat;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the cache whose region is the file `place`: attaches to it, or makes it if options.memory says how large. If `place` is a Unix
// socket, its server hands out its region (keyway serve --region-socket); "memfd" is anonymous memory of this process.
// `options` may be NULL. Returns NULL on failure: keyway_error() and keyway_message() say why.
//
// Opening takes about 0.1 ms, and each open cache takes one of the region's process slots: open once in a process, not once
// in a thread or a request.
struct keyway *keyway_open(const char *place,
                           const struct keyway_options *options);

// Closes a cache. No thread may use it now or later. The region remains, with its items. Its memory is unmapped when the
// threads that used it have ended, close it, or open another cache. NULL is ignored.
void keyway_close(struct keyway *cache);

// Copies the value of a key into `buffer`, and the item's properties into `item` (which may be NULL).
//
// KEYWAY_NOT_FOUND: there is no such item. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed, and nothing was
// copied (a `buffer_size` of 0 asks for the length). With any other result the buffer may have been written to. `item` gets
// zeros if no item was found, or the call failed. The key may be in the buffer.
enum keyway_result keyway_get(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              void *buffer,
                              size_t buffer_size,
                              struct keyway_item *item);

// As keyway_get(), and also returns the item's CAS unique.
enum keyway_result keyway_gets(struct keyway *cache,
                               const void *key,
                               size_t key_len,
                               void *buffer,
                               size_t buffer_size,
                               struct keyway_item *item);

// As keyway_gets(), and gives the item a new `exptime`, even if the buffer is too small.
enum keyway_result keyway_gat(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              int64_t exptime,
                              void *buffer,
                              size_t buffer_size,
                              struct keyway_item *item);

// As keyway_gets(), with the value in memory from malloc() and a zero byte after it. Free it by keyway_free() or free().
// `*value` is NULL unless the result is KEYWAY_OK.
enum keyway_result keyway_get_alloc(struct keyway *cache,
                                    const void *key,
                                    size_t key_len,
                                    void **value,
                                    struct keyway_item *item);

// As keyway_get_alloc(), and gives the item a new `exptime`.
enum keyway_result keyway_gat_alloc(struct keyway *cache,
                                    const void *key,
                                    size_t key_len,
                                    int64_t exptime,
                                    void **value,
                                    struct keyway_item *item);

// Gets `count` items. Each entry's key and key_len are inputs, its other fields outputs. The values are in one block from
// malloc(), which is stored in `*block` (NULL if there is none). Free it by keyway_free() or free() after the last use of
// the values. The result is KEYWAY_OK if each entry was found or not found, otherwise the result of the first entry that
// failed; if the call fails as a whole, every entry has its result.
enum keyway_result keyway_get_many(struct keyway *cache,
                                   struct keyway_entry *entries,
                                   size_t count,
                                   void **block);

// Frees memory of keyway_get_alloc(), keyway_gat_alloc(), keyway_get_many() and keyway_fetch_begin_alloc(); the same as
// free(). NULL is ignored.
void keyway_free(void *block);

// Stores a value, whether the key has one or not.
//
// `exptime` is memcached's, in all functions: 0 never, negative at once, up to 30 days seconds from now, above that a Unix
// time. `flags` are for the caller.
enum keyway_result keyway_set(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              const void *value,
                              size_t value_len,
                              int64_t exptime,
                              uint32_t flags);

// Stores a value if the key has none; otherwise KEYWAY_NOT_STORED.
enum keyway_result keyway_add(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              const void *value,
                              size_t value_len,
                              int64_t exptime,
                              uint32_t flags);

// Stores a value if the key has one; otherwise KEYWAY_NOT_STORED.
enum keyway_result keyway_replace(struct keyway *cache,
                                  const void *key,
                                  size_t key_len,
                                  const void *value,
                                  size_t value_len,
                                  int64_t exptime,
                                  uint32_t flags);

// Adds bytes at the end of a value, which keeps its flags and its exptime. KEYWAY_NOT_STORED: the key has no value.
enum keyway_result keyway_append(struct keyway *cache,
                                 const void *key,
                                 size_t key_len,
                                 const void *value,
                                 size_t value_len);

// Adds bytes before a value, which keeps its flags and its exptime. KEYWAY_NOT_STORED: the key has no value.
enum keyway_result keyway_prepend(struct keyway *cache,
                                  const void *key,
                                  size_t key_len,
                                  const void *value,
                                  size_t value_len);

// Stores a value if the item still has this CAS unique, which keyway_gets() returned; otherwise KEYWAY_EXISTS (it has
// changed) or KEYWAY_NOT_FOUND.
enum keyway_result keyway_cas(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              const void *value,
                              size_t value_len,
                              int64_t exptime,
                              uint32_t flags,
                              uint64_t cas);

// Deletes an item, or returns KEYWAY_NOT_FOUND.
enum keyway_result keyway_delete(struct keyway *cache, const void *key, size_t key_len);

// Adds `delta` to a decimal number, modulo 2^64, and stores the sum in `*number` (which may be NULL): 0 with any other result than
// KEYWAY_OK. KEYWAY_NOT_FOUND: there is no such item; KEYWAY_ERROR_NOT_A_NUMBER: its value is not a number.
enum keyway_result keyway_incr(struct keyway *cache,
                               const void *key,
                               size_t key_len,
                               uint64_t delta,
                               uint64_t *number);

// Subtracts `delta` from a decimal number, stopping at 0; otherwise as keyway_incr().
enum keyway_result keyway_decr(struct keyway *cache,
                               const void *key,
                               size_t key_len,
                               uint64_t delta,
                               uint64_t *number);

// As keyway_incr(), but if there is no item, one with the number `initial` is stored.
enum keyway_result keyway_incr_with_initial(struct keyway *cache,
                                            const void *key,
                                            size_t key_len,
                                            uint64_t delta,
                                            uint64_t initial,
                                            int64_t exptime,
                                            uint64_t *number);

// As keyway_decr(), but if there is no item, one with the number `initial` is stored.
enum keyway_result keyway_decr_with_initial(struct keyway *cache,
                                            const void *key,
                                            size_t key_len,
                                            uint64_t delta,
                                            uint64_t initial,
                                            int64_t exptime,
                                            uint64_t *number);

// Gives an item a new `exptime`, or returns KEYWAY_NOT_FOUND.
enum keyway_result keyway_touch(struct keyway *cache, const void *key, size_t key_len, int64_t exptime);

// Empties the cache for all its users: with `exptime` 0 at once, otherwise at that time, of all items stored until then.
enum keyway_result keyway_flush_all(struct keyway *cache,
                                    int64_t exptime);

// Gets a value, or the right and the duty to compute it, which one caller of all threads and processes has at a time. The
// others wait for that one, or get what is stale. What was computed is not stored if the key was deleted, flushed or stored
// meanwhile, so nothing that was read before a delete is found after it. `options` may be NULL; a hit looks at their size and
// at `early` only. `item` may be NULL.
//
// KEYWAY_OK: a value is in `buffer`. KEYWAY_STALE: an old one is, and another caller computes. KEYWAY_NOT_FOUND: it is
// remembered that there is no value. KEYWAY_COMPUTE: the caller computes, and ends the fetch by keyway_fetch_store(),
// keyway_fetch_store_nothing() or keyway_fetch_abandon(); until then, or until this thread ends, others wait.
// KEYWAY_IN_FLIGHT, KEYWAY_LIMITED: the wait is over. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed,
// nothing was copied, and no fetch has begun. With any other result the buffer may have been written to.
//
// `*token` is NULL unless the result is KEYWAY_COMPUTE. If keyway_fetch_has_old(*token), an old value and its item are where
// a hit's would be. Otherwise `item` gets zeros where no value was found, or the call failed. The key may be in the buffer.
//
// A process that may only read has its server wait. Without a server it computes, and stores nothing.
enum keyway_result keyway_fetch_begin(struct keyway *cache,
                                      const void *key,
                                      size_t key_len,
                                      const struct keyway_fetch_options *options,
                                      void *buffer,
                                      size_t buffer_size,
                                      struct keyway_item *item,
                                      struct keyway_fetch_token **token);

// As keyway_fetch_begin(), with the value in memory from malloc() and a zero byte after it. Free it by keyway_free() or
// free(). `*value` is NULL if there is none.
enum keyway_result keyway_fetch_begin_alloc(struct keyway *cache,
                                            const void *key,
                                            size_t key_len,
                                            const struct keyway_fetch_options *options,
                                            void **value,
                                            struct keyway_item *item,
                                            struct keyway_fetch_token **token);

// Whether there is an old value that options.stale_if_error_s allows to be used if computing fails: 1 or 0. It is where
// keyway_fetch_begin() or keyway_fetch_begin_alloc() has put it. NULL has none.
int keyway_fetch_has_old(const struct keyway_fetch_token *token);

// Stores what was computed, by the options of the begin, and wakes those who wait. The token is freed, whatever the result
// is. Any thread may call it, before keyway_close().
//
// KEYWAY_NOT_STORED: the token is void, and nothing is stored: the key was deleted, flushed or stored since the fetch began,
// another caller has taken the computation over, or this is a forked child and the fetch its parent's.
enum keyway_result keyway_fetch_store(struct keyway_fetch_token *token,
                                      const void *value,
                                      size_t value_len);

// As keyway_fetch_store(), where there is no value. That is remembered for options.negative_ttl_s seconds.
enum keyway_result keyway_fetch_store_nothing(struct keyway_fetch_token *token);

// Ends a fetch whose computation has failed: one of those who wait computes. Otherwise as keyway_fetch_store(). NULL is
// ignored.
enum keyway_result keyway_fetch_abandon(struct keyway_fetch_token *token);

// A message about this thread's last failure: value, limit and remedy. Empty if there was no failure. It is valid until this
// thread's next failure; calls that succeed, miss or are not stored do not change it.
const char *keyway_message(void);

// The code of this thread's last failure, KEYWAY_OK if there was none: for keyway_open(), which does not return a code.
enum keyway_result keyway_error(void);

// The name of a result, such as "KEYWAY_NOT_FOUND"; "unknown" for any other number.
const char *keyway_result_name(int result);

// The version of the library, such as "0.2.0".
const char *keyway_version(void);

// The statistics of the cache, of all processes and doors since the region was created. On entry `*count` is the number of
// elements of `stats`, on return the number of statistics, or 0 if the call failed. If there are more than `stats` can hold, the result is
// KEYWAY_ERROR_BUFFER_TOO_SMALL. `stats` may be NULL if `*count` is 0.
enum keyway_result keyway_stats(struct keyway *cache,
                                struct keyway_stat *stats,
                                size_t *count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEYWAY_H */
