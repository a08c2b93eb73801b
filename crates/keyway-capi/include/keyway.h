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

// Option: a region that is absent is an error, not created.
#define KEYWAY_EXISTING_ONLY 1

// Option: ask for huge pages.
#define KEYWAY_HUGE_PAGES 2

// Option: fault every page in now instead of at its first use.
#define KEYWAY_PREFAULT 4

// Option: the region's mapping stays accessible outside calls also where the processor has protection keys. The environment
// variable KEYWAY_GATE, off or on, outranks it.
#define KEYWAY_NO_GATE 64

// Option: when the region is full, refuse to store instead of evicting (this process only).
#define KEYWAY_NO_EVICT 8

// Option: a new region gives every item a checksum, which every reader verifies; an existing one must have been made so.
#define KEYWAY_CHECKSUMS 16

// Option: use the region even if another user owns its file, or its mode lets every user write to it. Such a user can change items at any
// time, and kill this process by truncating the file (SIGBUS).
#define KEYWAY_ANY_OWNER 128

// What a call came to. Below KEYWAY_ERROR_ARGUMENT it is an answer; from there on it is a failure, and keyway_message() says
// what was wrong, which limit applies and what to do.
typedef enum keyway_result {
    // done
    KEYWAY_OK = 0,
    // there is no such item
    KEYWAY_NOT_FOUND = 1,
    // add: there is one already; replace, append, prepend: there is none
    KEYWAY_NOT_STORED = 2,
    // cas: the item has been changed since its CAS unique was read
    KEYWAY_EXISTS = 3,
    // an argument is impossible: NULL where something is needed, or a value that is not allowed
    KEYWAY_ERROR_ARGUMENT = 16,
    // a key is empty or longer than KEYWAY_KEY_LENGTH_MAX
    KEYWAY_ERROR_KEY_LENGTH = 17,
    // the item is larger than the largest allowed
    KEYWAY_ERROR_TOO_LARGE = 18,
    // the value does not fit the buffer; its length is in the item
    KEYWAY_ERROR_BUFFER_TOO_SMALL = 19,
    // incr, decr: the value is no decimal number below 2^64
    KEYWAY_ERROR_NOT_A_NUMBER = 20,
    // the region is full and nothing can be evicted, or this process has no memory for a copy
    KEYWAY_ERROR_OUT_OF_MEMORY = 21,
    // there is no region at this place, and only an existing one was asked for; or no server to ask for one
    KEYWAY_ERROR_ABSENT = 22,
    // what is at this place is no region that this library can use: another version, truncated, or something else
    KEYWAY_ERROR_UNUSABLE = 23,
    // there is no room for the region, or for as much memory as was asked for
    KEYWAY_ERROR_NO_SPACE = 24,
    // as many processes or threads are attached as the region has room for
    KEYWAY_ERROR_FULL = 25,
    // this thread is inside a call already, or somebody is replacing the region
    KEYWAY_ERROR_BUSY = 26,
    // shared memory holds what nobody writes
    KEYWAY_ERROR_DAMAGED = 27,
    // the operating system refused something
    KEYWAY_ERROR_SYSTEM = 28,
    // the server does not hand out its region to this process; or it answers from the kernel, and this process cannot tell it of changes
    KEYWAY_ERROR_REFUSED = 29,
    // a bug in Keyway was stopped at the library's edge
    KEYWAY_ERROR_BUG = 30,
} keyway_result;

// An open cache. Every thread may use it, also at the same time; there is nothing to set up per thread.
typedef struct keyway keyway;

// How to open a cache. Zeros mean the defaults, so set `size`, what you want otherwise, and nothing else:
// `keyway_options options = {.size = sizeof options, .memory = 1 << 30};`
typedef struct keyway_options {
    // sizeof(keyway_options)
    size_t size;
    // size of the region in bytes, all-inclusive, from 2 MiB: a new one has it, and an existing one that has less is given
    // it. 0: 64 MiB for a new one; an existing one stays as it is
    uint64_t memory;
    // largest item, bytes, counted as memcached counts (its -I), 1 KiB to 1 GiB and at most half of the memory. 0: 1 MiB
    uint64_t item_size_max;
    // file mode of a new region. 0: 0600
    uint32_t mode;
    // KEYWAY_EXISTING_ONLY and others, added up
    uint32_t flags;
} keyway_options;

// What is known of an item besides its key and value.
typedef struct keyway_item {
    // length of the value, bytes
    size_t value_len;
    // its CAS unique, for keyway_cas(); 0 from keyway_get(), which does not look for it
    uint64_t cas;
    // seconds until it expires; -1: never
    int64_t ttl;
    // the flags that it was stored with
    uint32_t flags;
} keyway_item;

// One key of a keyway_get_many(), and what became of it.
typedef struct keyway_entry {
    // given: the key
    const void *key;
    // given: its length, bytes
    size_t key_len;
    // answered: KEYWAY_OK, KEYWAY_NOT_FOUND or a failure
    enum keyway_result result;
    // answered if KEYWAY_OK: the item
    struct keyway_item item;
    // answered if KEYWAY_OK: the value, with a zero byte after it; it lies in the call's one block. NULL otherwise
    const char *value;
} keyway_entry;

// A number that keyway_stats() tells.
typedef struct keyway_stat {
    // what it counts, as memcached's `stats` calls it where memcached has it
    char name[KEYWAY_STAT_NAME_SIZE];
    // how many
    uint64_t value;
} keyway_stat;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the cache whose region is the file `place`: attaches to it, or creates it (see keyway_options). If `place` is a Unix
// socket, the server behind it hands out its region (keyway serve --region-socket); "memfd" is anonymous memory of this
// process. `options` may be NULL. Returns NULL on failure: keyway_error() and keyway_message() say why.
//
// Opening takes about 0.1 ms, and each open cache one of the region's process slots: open once in a process, not once in a
// thread or a request.
struct keyway *keyway_open(const char *place,
                           const struct keyway_options *options);

// Closes a cache. No thread may be using it, and none may use it afterwards. The region stays, with its items; its memory is
// unmapped when the threads that used it have ended, or close it, or need their next cache. NULL is ignored.
void keyway_close(struct keyway *cache);

// Copies the value of a key into `buffer`, and tells of its item in `item` (which may be NULL).
//
// KEYWAY_NOT_FOUND: there is none. KEYWAY_ERROR_BUFFER_TOO_SMALL: item->value_len bytes are needed, and nothing was copied
// (a `buffer_size` of 0 asks for the length). With any other result the buffer may have been written to.
enum keyway_result keyway_get(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              void *buffer,
                              size_t buffer_size,
                              struct keyway_item *item);

// As keyway_get(), and tells the item's CAS unique too.
enum keyway_result keyway_gets(struct keyway *cache,
                               const void *key,
                               size_t key_len,
                               void *buffer,
                               size_t buffer_size,
                               struct keyway_item *item);

// As keyway_gets(), and gives the item a new `exptime`, also if the buffer turns out to be too small.
enum keyway_result keyway_gat(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              int64_t exptime,
                              void *buffer,
                              size_t buffer_size,
                              struct keyway_item *item);

// As keyway_gets(), with the value in memory from malloc(), a zero byte after it: give it to keyway_free() or free(). `*value`
// is NULL unless the result is KEYWAY_OK.
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

// Gets `count` items: each entry's key and key_len are given, its other fields are answered. The values lie in one block from
// malloc(), which is stored in `*block`: give it to keyway_free() or free() when the values are done with (NULL if there is
// none). The result is KEYWAY_OK if every entry was found or not, else the first entry's that failed.
enum keyway_result keyway_get_many(struct keyway *cache,
                                   struct keyway_entry *entries,
                                   size_t count,
                                   void **block);

// Frees what keyway_get_alloc(), keyway_gat_alloc() and keyway_get_many() allocated; the same as free(). NULL is ignored.
void keyway_free(void *block);

// Stores a value whatever was there.
//
// `exptime` is memcached's, here and everywhere: 0 never, negative at once, up to 30 days seconds from now, above that a Unix
// time. `flags` are the caller's own.
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

// Adds bytes at the end of a value, which keeps its flags and its exptime; KEYWAY_NOT_STORED: there is none.
enum keyway_result keyway_append(struct keyway *cache,
                                 const void *key,
                                 size_t key_len,
                                 const void *value,
                                 size_t value_len);

// Adds bytes before a value, which keeps its flags and its exptime; KEYWAY_NOT_STORED: there is none.
enum keyway_result keyway_prepend(struct keyway *cache,
                                  const void *key,
                                  size_t key_len,
                                  const void *value,
                                  size_t value_len);

// Stores a value if the item still has this CAS unique, which keyway_gets() told; otherwise KEYWAY_EXISTS (it has been changed)
// or KEYWAY_NOT_FOUND.
enum keyway_result keyway_cas(struct keyway *cache,
                              const void *key,
                              size_t key_len,
                              const void *value,
                              size_t value_len,
                              int64_t exptime,
                              uint32_t flags,
                              uint64_t cas);

// Deletes an item, or answers KEYWAY_NOT_FOUND.
enum keyway_result keyway_delete(struct keyway *cache, const void *key, size_t key_len);

// Adds `delta` to a decimal number, modulo 2^64, and stores the sum in `*number` (which may be NULL). KEYWAY_NOT_FOUND: there
// is none; KEYWAY_ERROR_NOT_A_NUMBER: it is something else.
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

// As keyway_incr(), but where there is no item, one with the number `initial` is stored.
enum keyway_result keyway_incr_with_initial(struct keyway *cache,
                                            const void *key,
                                            size_t key_len,
                                            uint64_t delta,
                                            uint64_t initial,
                                            int64_t exptime,
                                            uint64_t *number);

// As keyway_decr(), but where there is no item, one with the number `initial` is stored.
enum keyway_result keyway_decr_with_initial(struct keyway *cache,
                                            const void *key,
                                            size_t key_len,
                                            uint64_t delta,
                                            uint64_t initial,
                                            int64_t exptime,
                                            uint64_t *number);

// Gives an item a new `exptime`, or answers KEYWAY_NOT_FOUND.
enum keyway_result keyway_touch(struct keyway *cache, const void *key, size_t key_len, int64_t exptime);

// Empties the cache for everybody: with `exptime` 0 at once, otherwise of everything that is stored until then, and then.
enum keyway_result keyway_flush_all(struct keyway *cache,
                                    int64_t exptime);

// What this thread's last failure was, in words: value, limit and remedy. Empty if there was none. It is valid until this
// thread's next failure; calls that succeed, miss or are not stored leave it alone.
const char *keyway_message(void);

// The code of this thread's last failure, KEYWAY_OK if there was none: for keyway_open(), which has no place for it.
enum keyway_result keyway_error(void);

// The name of a result, such as "KEYWAY_NOT_FOUND"; "unknown" of any other number.
const char *keyway_result_name(int result);

// The version of the library, such as "0.1.0".
const char *keyway_version(void);

// The numbers of the cache, of all processes and doors since the region was created. `*count` says how many `stats` has room
// for, and is told how many there are; with more than there is room for the result is KEYWAY_ERROR_BUFFER_TOO_SMALL. `stats`
// may be NULL if `*count` is 0.
enum keyway_result keyway_stats(struct keyway *cache,
                                struct keyway_stat *stats,
                                size_t *count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEYWAY_H */
