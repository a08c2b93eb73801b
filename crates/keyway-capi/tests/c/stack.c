/* How much of its stack a thread needs for a call: enemy, a frame that has become large.
 *
 *     stack PLACE
 *
 * Prints the most bytes that any of the calls below took, each as the first call of a thread: that one also makes the thread's session.
 * The stack is painted before, and the paint that is left tells how far the thread came. */
#define _GNU_SOURCE
#include <keyway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(is_so)                                                                              \
    do {                                                                                          \
        if (!(is_so)) {                                                                           \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #is_so, keyway_message());            \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { STACK = 1 << 20, PAINT = 0xA5, LARGE = 500000 };

static const char *place;
static keyway *cache;
static char buffer[LARGE];
static keyway_stat stats[400];
static keyway_entry entries[64];

static void nothing(void) {}

static void stores(void) {
    CHECK(keyway_set(cache, "key", 3, "value", 5, 0, 0) == KEYWAY_OK);
    CHECK(keyway_append(cache, "key", 3, "more", 4) == KEYWAY_OK);
    CHECK(keyway_set(cache, "large", 5, buffer, LARGE, 0, 0) == KEYWAY_OK);
    CHECK(keyway_set(cache, "", 0, "value", 5, 0, 0) == KEYWAY_ERROR_KEY_LENGTH);
}

static void gets(void) {
    void *block = NULL;
    keyway_item item;
    CHECK(keyway_set(cache, "key", 3, "value", 5, 0, 0) == KEYWAY_OK);
    CHECK(keyway_gets(cache, "key", 3, buffer, LARGE, &item) == KEYWAY_OK);
    CHECK(keyway_cas(cache, "key", 3, "other", 5, 0, 0, item.cas) == KEYWAY_OK);
    CHECK(keyway_gat(cache, "key", 3, 100, buffer, LARGE, &item) == KEYWAY_OK);
    CHECK(keyway_get(cache, "large", 5, buffer, LARGE, &item) == KEYWAY_OK);
    CHECK(keyway_get(cache, "key", 3, buffer, 1, &item) == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    CHECK(keyway_get_alloc(cache, "key", 3, &block, &item) == KEYWAY_OK);
    keyway_free(block);
}

static void many(void) {
    void *block = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        entries[i].key = i % 2 ? "key" : "absent";
        entries[i].key_len = i % 2 ? 3 : 6;
    }
    CHECK(keyway_get_many(cache, entries, sizeof entries / sizeof *entries, &block) == KEYWAY_OK);
    keyway_free(block);
}

static void others(void) {
    uint64_t number = 0;
    size_t count = sizeof stats / sizeof *stats;
    CHECK(keyway_incr_with_initial(cache, "number", 6, 1, 1, 0, &number) == KEYWAY_OK);
    CHECK(keyway_touch(cache, "key", 3, 100) == KEYWAY_OK);
    CHECK(keyway_stats(cache, stats, &count) == KEYWAY_OK);
    CHECK(keyway_delete(cache, "key", 3) == KEYWAY_OK);
    CHECK(keyway_flush_all(cache, 0) == KEYWAY_OK);
}

static void fetches(void) {
    void *block = NULL;
    keyway_fetch_token *token = NULL;
    keyway_fetch_options options = {.size = sizeof options, .limit = 1, .limit_prefix = "f", .limit_prefix_len = 1};
    CHECK(keyway_fetch_begin(cache, "fetched", 7, &options, buffer, LARGE, NULL, &token) == KEYWAY_COMPUTE);
    CHECK(keyway_fetch_store(token, buffer, LARGE) == KEYWAY_OK);
    CHECK(keyway_fetch_begin_alloc(cache, "fetched", 7, &options, &block, NULL, &token) == KEYWAY_OK);
    keyway_free(block);
    options.early = 1;
    CHECK(keyway_fetch_begin(cache, "fetched", 7, &options, buffer, LARGE, NULL, &token) == KEYWAY_OK);
    CHECK(keyway_delete(cache, "fetched", 7) == KEYWAY_OK);
}

static void opening(void) {
    keyway *own = keyway_open(place, NULL);
    CHECK(own != NULL && keyway_set(own, "key", 3, "value", 5, 0, 0) == KEYWAY_OK);
    keyway_close(own);
    own = keyway_open("memfd", NULL);
    CHECK(own != NULL && keyway_set(own, "key", 3, "value", 5, 0, 0) == KEYWAY_OK);
    keyway_close(own);
    CHECK(keyway_open("/nowhere/region", NULL) == NULL);
}

static void *work(void *calls) {
    (*(void (**)(void))calls)();
    return NULL;
}

/* How many bytes of its stack a thread takes that makes these calls. */
static size_t taken_by(void (*calls)(void)) {
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    memset(stack, PAINT, STACK);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&thread, &attributes, work, &calls) == 0 && pthread_join(thread, NULL) == 0);
    size_t left = 0;
    while (left < STACK && stack[left] == PAINT)
        left++;
    munmap(stack, STACK);
    return STACK - left;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    place = argv[1];
    keyway_options options = {.size = sizeof options, .memory = 64 << 20};
    cache = keyway_open(place, &options);
    CHECK(cache != NULL);
    size_t most = 0, own = taken_by(nothing);
    void (*const calls[])(void) = {stores, gets, many, others, fetches, opening};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        size_t taken = taken_by(calls[i]) - own;
        most = taken > most ? taken : most;
    }
    printf("%zu\n", most);
    keyway_close(cache);
    return 0;
}
