/*
 * A program that misuses the library, or runs out of something, in one way: victim PLACE WAY. Where that can be known it is given an
 * error, and ends with 0 and a line "told"; otherwise it is ended by a signal of its own. It never returns from a call with a wrong answer.
 */
#define _GNU_SOURCE
#include <keyway.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, SMALL = 60000, LARGE = 900000 };

static keyway *cache;
static char value[LARGE];

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (last message: %s)\n", __FILE__, __LINE__, #condition, \
                    keyway_message());                                                                \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define KEY(text) (text), (sizeof(text) - 1)

static void limit(int resource, rlim_t to) {
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = to;
    CHECK(setrlimit(resource, &limit) == 0);
}

/* So much memory more than there is now, or none. */
static void limit_memory(size_t more) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm != NULL && fscanf(statm, "%lu", &pages) == 1 && fclose(statm) == 0);
    limit(RLIMIT_AS, (rlim_t)pages * PAGE + more);
}

/* No block of so many bytes is to be had any more. */
static void exhaust(size_t size) {
    limit_memory(0);
    while (malloc(size) != NULL)
        ;
}

static void unlimit_memory(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* A page with rights, and one behind it with none. */
static char *edge(int rights) {
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    memset(pages, 'e', PAGE);
    CHECK(mprotect(pages, PAGE, rights) == 0 && mprotect(pages + PAGE, PAGE, PROT_NONE) == 0);
    return pages;
}

/* ---- what runs out */

static int deeper(int depth) {
    volatile char frame[512];
    char key[32];
    keyway_item item;
    size_t len = (size_t)snprintf(key, sizeof key, "victim-%d", depth % 50);
    memset((void *)frame, depth, sizeof frame);
    CHECK(keyway_set(cache, key, len, value, (size_t)(depth % 3000), 0, 0) == KEYWAY_OK);
    CHECK(keyway_get(cache, key, len, value, sizeof value, &item) == KEYWAY_OK && item.value_len == (size_t)(depth % 3000));
    /* A bound that no stack has room for. */
    return depth < 1 << 24 ? deeper(depth + 1) + frame[0] : 0;
}

static void *recursion(void *unused) {
    (void)unused;
    return (void *)(size_t)deeper(0);
}

static void stack(void) { deeper(0); }

static void stack_of_a_thread(void) {
    pthread_t id;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 64 << 10) == 0);
    CHECK(pthread_create(&id, &attributes, recursion, NULL) == 0);
    pthread_join(id, NULL);
}

static const char *place;

static void descriptors(void) {
    pid_t child;
    int status;
    limit(RLIMIT_NOFILE, 0);
    CHECK(keyway_open(place, NULL) == NULL && keyway_error() == KEYWAY_ERROR_SYSTEM);
    CHECK(keyway_open("memfd", NULL) == NULL && keyway_error() == KEYWAY_ERROR_SYSTEM);
    /* What is open goes on; a child, which would have to open it again, is told. */
    CHECK(keyway_set(cache, KEY("victim"), KEY("v"), 0, 0) == KEYWAY_OK);
    if ((child = fork()) == 0) {
        CHECK(keyway_set(cache, KEY("victim"), KEY("w"), 0, 0) == KEYWAY_ERROR_SYSTEM);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void memory_for_opening(void) {
    limit_memory(1 << 20);
    CHECK(keyway_open(place, NULL) == NULL && keyway_error() == KEYWAY_ERROR_NO_SPACE && strstr(keyway_message(), "RLIMIT_AS"));
    CHECK(keyway_set(cache, KEY("victim"), KEY("v"), 0, 0) == KEYWAY_OK);
}

/* The copy that the thread makes has its buffer, the answer has none. */
static void memory_for_an_answer(void) {
    keyway_item item;
    void *answer;
    CHECK(keyway_set(cache, KEY("victim"), value, SMALL, 0, 0) == KEYWAY_OK);
    CHECK(keyway_get_alloc(cache, KEY("victim"), &answer, &item) == KEYWAY_OK && item.value_len == SMALL);
    exhaust(SMALL / 2);
    CHECK(keyway_get_alloc(cache, KEY("victim"), &answer, &item) == KEYWAY_ERROR_OUT_OF_MEMORY && answer == NULL);
    CHECK(keyway_get(cache, KEY("victim"), value, SMALL, &item) == KEYWAY_OK && item.value_len == SMALL);
}

static int out_of_memory(keyway_result result) {
    return result == KEYWAY_ERROR_OUT_OF_MEMORY && keyway_error() == result &&
           strstr(keyway_message(), "this process has no memory for a copy of ") != NULL;
}

static uint64_t stat(const char *name) {
    keyway_stat stats[512];
    size_t count = sizeof stats / sizeof *stats;
    CHECK(keyway_stats(cache, stats, &count) == KEYWAY_OK);
    while (strcmp(stats[--count].name, name) != 0)
        CHECK(count > 0);
    return stats[count].value;
}

/* No buffer yet, and no memory for one: whoever needs one is told, nothing changes, and what needs none goes on. */
static void memory_for_a_copy(void) {
    keyway_item item;
    keyway_entry entries[] = {{.key = "victim", .key_len = 6}, {.key = "small", .key_len = 5}};
    void *answer, *block;
    int is_gated = stat("gate") != 0;
    CHECK(keyway_set(cache, KEY("victim"), value, LARGE, 0, 0) == KEYWAY_OK);
    CHECK(keyway_set(cache, KEY("small"), KEY("s"), 0, 0) == KEYWAY_OK);
    exhaust(LARGE / 2);
    /* Inside the gate no value is copied to the caller's memory. */
    if (is_gated) {
        CHECK(out_of_memory(keyway_get(cache, KEY("victim"), value, LARGE, &item)));
        CHECK(out_of_memory(keyway_gets(cache, KEY("victim"), value, LARGE, &item)));
    } else {
        CHECK(keyway_get(cache, KEY("victim"), value, LARGE, &item) == KEYWAY_OK && item.value_len == LARGE);
        CHECK(keyway_gets(cache, KEY("victim"), value, LARGE, &item) == KEYWAY_OK && item.cas != 0);
    }
    CHECK(out_of_memory(keyway_gat(cache, KEY("victim"), 60, value, LARGE, &item)));
    CHECK(out_of_memory(keyway_get_alloc(cache, KEY("victim"), &answer, &item)) && answer == NULL);
    CHECK(out_of_memory(keyway_get_many(cache, entries, 2, &block)));
    CHECK(entries[0].result == KEYWAY_ERROR_OUT_OF_MEMORY && entries[0].value == NULL);
    CHECK(entries[1].result == KEYWAY_OK && strcmp(entries[1].value, "s") == 0);
    keyway_free(block);
    CHECK(out_of_memory(keyway_append(cache, KEY("victim"), KEY("+"))));
    CHECK(out_of_memory(keyway_prepend(cache, KEY("victim"), KEY("+"))));
    /* Inside the gate a value is not read from where the caller has it. */
    if (is_gated)
        CHECK(out_of_memory(keyway_set(cache, KEY("new"), value, LARGE, 0, 0)));
    else
        CHECK(keyway_set(cache, KEY("new"), value, LARGE, 0, 0) == KEYWAY_OK);
    CHECK(keyway_set(cache, KEY("small"), KEY("t"), 0, 0) == KEYWAY_OK);
    CHECK(keyway_get(cache, KEY("small"), value, 1, &item) == KEYWAY_OK && value[0] == 't');
    CHECK(keyway_get(cache, KEY("victim"), NULL, 0, &item) == KEYWAY_ERROR_BUFFER_TOO_SMALL && item.value_len == LARGE);
    unlimit_memory();
    CHECK(keyway_gets(cache, KEY("victim"), value, LARGE, &item) == KEYWAY_OK && item.value_len == LARGE && item.ttl_s == -1);
    CHECK(keyway_get(cache, KEY("new"), NULL, 0, &item) == (is_gated ? KEYWAY_NOT_FOUND : KEYWAY_ERROR_BUFFER_TOO_SMALL));
}

/* ---- pointers */

static keyway_item item;

static void null_pointers(void) {
    keyway_entry entry = {.key = NULL, .key_len = 3};
    void *block;
    CHECK(keyway_get(NULL, KEY("k"), value, 8, NULL) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get(cache, NULL, 3, value, 8, NULL) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get(cache, KEY("k"), NULL, 8, NULL) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_set(cache, KEY("k"), NULL, 3, 0, 0) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_set(cache, KEY("k"), value, (size_t)-1, 0, 0) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get_alloc(cache, KEY("k"), NULL, NULL) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get_many(cache, &entry, 1, &block) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get_many(cache, NULL, 2, &block) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_open(NULL, NULL) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT);
}

static void no_handle(void) { keyway_get((keyway *)16, KEY("victim"), value, 8, &item); }
static void no_key(void) { keyway_get(cache, edge(PROT_READ) + PAGE, 10, value, 8, &item); }
static void half_a_key(void) { keyway_set(cache, edge(PROT_READ) + PAGE - 5, 10, KEY("v"), 0, 0); }
static void no_value(void) { keyway_set(cache, KEY("victim"), edge(PROT_READ) + PAGE, 3000, 0, 0); }
static void half_a_value(void) { keyway_set(cache, KEY("victim"), edge(PROT_READ) + PAGE - 2000, 3000, 0, 0); }
static void half_a_large_value(void) { keyway_set(cache, KEY("victim"), edge(PROT_READ), 600000, 0, 0); }
static void half_a_value_over_another(void) {
    CHECK(keyway_set(cache, KEY("victim"), value, 3000, 0, 0) == KEYWAY_OK);
    keyway_append(cache, KEY("victim"), edge(PROT_READ) + PAGE - 2000, 3000);
}
static void get_to(char *buffer) {
    CHECK(keyway_set(cache, KEY("victim"), value, 3000, 0, 0) == KEYWAY_OK);
    keyway_get(cache, KEY("victim"), buffer, 3000, &item);
}
static void no_buffer(void) { get_to(edge(PROT_READ) + PAGE); }
static void half_a_buffer(void) { get_to(edge(PROT_READ | PROT_WRITE) + PAGE - 1000); }
static void a_buffer_for_reading(void) { get_to(edge(PROT_READ)); }
static void no_item(void) {
    CHECK(keyway_set(cache, KEY("victim"), KEY("v"), 0, 0) == KEYWAY_OK);
    keyway_get(cache, KEY("victim"), value, 8, (keyway_item *)(edge(PROT_READ) + PAGE));
}
static void no_number(void) {
    CHECK(keyway_set(cache, KEY("victim"), KEY("1"), 0, 0) == KEYWAY_OK);
    keyway_incr(cache, KEY("victim"), 1, (uint64_t *)(edge(PROT_READ) + PAGE));
}
static void no_entries(void) {
    void *block;
    keyway_get_many(cache, (keyway_entry *)(edge(PROT_READ) + PAGE), 3, &block);
}
static void no_options(void) { keyway_open(place, (keyway_options *)(edge(PROT_READ) + PAGE)); }

static const struct {
    const char *name;
    void (*run)(void);
} WAYS[] = {
    {"stack", stack},
    {"stack-of-a-thread", stack_of_a_thread},
    {"descriptors", descriptors},
    {"memory-for-opening", memory_for_opening},
    {"memory-for-an-answer", memory_for_an_answer},
    {"memory-for-a-copy", memory_for_a_copy},
    {"null-pointers", null_pointers},
    {"no-handle", no_handle},
    {"no-key", no_key},
    {"half-a-key", half_a_key},
    {"no-value", no_value},
    {"half-a-value", half_a_value},
    {"half-a-large-value", half_a_large_value},
    {"half-a-value-over-another", half_a_value_over_another},
    {"no-buffer", no_buffer},
    {"half-a-buffer", half_a_buffer},
    {"a-buffer-for-reading", a_buffer_for_reading},
    {"no-item", no_item},
    {"no-number", no_number},
    {"no-entries", no_entries},
    {"no-options", no_options},
};

int main(int argc, char **argv) {
    keyway_options options = {.size = sizeof options};
    CHECK(argc == 3);
    limit(RLIMIT_CORE, 0);
    place = argv[1];
    cache = keyway_open(place, &options);
    CHECK(cache != NULL);
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
        if (strcmp(WAYS[i].name, argv[2]) == 0) {
            WAYS[i].run();
            puts("told");
            return 0;
        }
    CHECK(!"such a way");
}
