// Uses everything in keyway.h, against a region that a server and others share: library PLACE DIRECTORY
//
// Before, "from-server" is set to "hello" with flags 5; afterwards "from-c" is "world". Ends with a line "OK".

#define _GNU_SOURCE
#include <errno.h>
#include <keyway.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (last message: %s)\n", __FILE__, __LINE__, #condition, \
                    keyway_message());                                                                \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define KEY(text) (text), (sizeof(text) - 1)

enum { THREADS = 8, ROUNDS = 4000, STACK = 64 << 10 };

static keyway *cache;
static unsigned own_sessions;

static uint64_t stat_of(keyway *of, const char *name) {
    keyway_stat stats[64];
    size_t count = 64;
    CHECK(keyway_stats(of, stats, &count) == KEYWAY_OK);
    CHECK(count > 30 && count <= 64);
    for (size_t i = 0; i < count; i++)
        if (strcmp(stats[i].name, name) == 0) return stats[i].value;
    fprintf(stderr, "no statistic is called %s\n", name);
    exit(1);
}

static int says(const char *text) { return strstr(keyway_message(), text) != NULL; }

static int has(const char *key, const char *expected) {
    char buffer[256];
    keyway_item item;
    if (keyway_get(cache, key, strlen(key), buffer, sizeof buffer, &item) != KEYWAY_OK) return 0;
    return item.value_len == strlen(expected) && memcmp(buffer, expected, item.value_len) == 0;
}

static void verbs(void) {
    char buffer[16];
    keyway_item item, again;
    uint64_t number = 0;
    void *value;

    CHECK(has("from-server", "hello"));
    CHECK(keyway_get(cache, KEY("from-server"), NULL, 0, &item) == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    CHECK(item.value_len == 5 && item.flags == 5 && item.ttl_s == -1 && item.cas == 0);
    CHECK(keyway_set(cache, KEY("from-c"), KEY("world"), 0, 7) == KEYWAY_OK);

    CHECK(keyway_get(cache, KEY("absent"), buffer, sizeof buffer, NULL) == KEYWAY_NOT_FOUND);
    CHECK(keyway_add(cache, KEY("verb"), KEY("b"), 100, 3) == KEYWAY_OK);
    CHECK(keyway_add(cache, KEY("verb"), KEY("x"), 0, 0) == KEYWAY_NOT_STORED);
    CHECK(keyway_replace(cache, KEY("absent"), KEY("x"), 0, 0) == KEYWAY_NOT_STORED);
    CHECK(keyway_append(cache, KEY("absent"), KEY("x")) == KEYWAY_NOT_STORED);
    CHECK(keyway_append(cache, KEY("verb"), KEY("c")) == KEYWAY_OK);
    CHECK(keyway_prepend(cache, KEY("verb"), KEY("a")) == KEYWAY_OK);
    CHECK(has("verb", "abc"));
    CHECK(keyway_gets(cache, KEY("verb"), buffer, sizeof buffer, &item) == KEYWAY_OK);
    CHECK(item.flags == 3 && item.cas != 0 && item.ttl_s > 90 && item.ttl_s <= 100);
    CHECK(keyway_replace(cache, KEY("verb"), KEY("new"), 0, 0) == KEYWAY_OK);
    CHECK(keyway_cas(cache, KEY("verb"), KEY("old"), 0, 0, item.cas) == KEYWAY_EXISTS);
    CHECK(keyway_cas(cache, KEY("absent"), KEY("old"), 0, 0, item.cas) == KEYWAY_NOT_FOUND);
    CHECK(keyway_gets(cache, KEY("verb"), buffer, sizeof buffer, &item) == KEYWAY_OK);
    CHECK(keyway_cas(cache, KEY("verb"), KEY("newer"), 0, 0, item.cas) == KEYWAY_OK);
    CHECK(has("verb", "newer"));

    CHECK(keyway_touch(cache, KEY("verb"), 50) == KEYWAY_OK);
    CHECK(keyway_touch(cache, KEY("absent"), 50) == KEYWAY_NOT_FOUND);
    CHECK(keyway_gat(cache, KEY("verb"), 500, buffer, sizeof buffer, &item) == KEYWAY_OK);
    CHECK(item.value_len == 5 && memcmp(buffer, "newer", 5) == 0);
    CHECK(keyway_gat_alloc(cache, KEY("verb"), 1000, &value, &item) == KEYWAY_OK);
    CHECK(strcmp(value, "newer") == 0 && item.value_len == 5);
    keyway_free(value);
    CHECK(keyway_get_alloc(cache, KEY("verb"), &value, &again) == KEYWAY_OK);
    CHECK(strcmp(value, "newer") == 0 && again.cas == item.cas && again.ttl_s > 900);
    free(value);
    CHECK(keyway_get_alloc(cache, KEY("absent"), &value, NULL) == KEYWAY_NOT_FOUND && value == NULL);

    CHECK(keyway_incr(cache, KEY("number"), 1, &number) == KEYWAY_NOT_FOUND);
    CHECK(keyway_incr_with_initial(cache, KEY("number"), 1, 41, 0, &number) == KEYWAY_OK && number == 41);
    CHECK(keyway_incr(cache, KEY("number"), 1, &number) == KEYWAY_OK && number == 42);
    CHECK(keyway_decr(cache, KEY("number"), 50, NULL) == KEYWAY_OK && has("number", "0 "));
    CHECK(keyway_decr_with_initial(cache, KEY("count"), 1, 9, 0, &number) == KEYWAY_OK && number == 9);
    CHECK(keyway_set(cache, KEY("bytes"), "\0\xff", 2, 0, 0) == KEYWAY_OK);
    CHECK(keyway_set(cache, KEY("empty"), NULL, 0, 0, 0) == KEYWAY_OK);
    CHECK(keyway_get(cache, KEY("empty"), NULL, 0, &item) == KEYWAY_OK && item.value_len == 0);

    keyway_entry entries[] = {{.key = "verb", .key_len = 4},  {.key = "absent", .key_len = 6},
                              {.key = "bytes", .key_len = 5}, {.key = "empty", .key_len = 5},
                              {.key = "verb", .key_len = 4}};
    CHECK(keyway_get_many(cache, entries, 5, &value) == KEYWAY_OK && value != NULL);
    CHECK(entries[0].result == KEYWAY_OK && strcmp(entries[0].value, "newer") == 0);
    CHECK(entries[1].result == KEYWAY_NOT_FOUND && entries[1].value == NULL);
    CHECK(entries[2].item.value_len == 2 && memcmp(entries[2].value, "\0\xff", 3) == 0);
    CHECK(entries[3].result == KEYWAY_OK && entries[3].item.value_len == 0 && entries[3].value[0] == 0);
    CHECK(strcmp(entries[4].value, "newer") == 0 && entries[4].item.cas == entries[0].item.cas);
    free(value);
    CHECK(keyway_get_many(cache, NULL, 0, &value) == KEYWAY_OK && value == NULL);

    // More than are fetched together, the last ones of a part that is not full.
    enum { MANY = 2 * 16 + 5 };
    keyway_entry many[MANY];
    char names[MANY][8];
    for (int i = 0; i < MANY; i++) {
        many[i].key_len = (size_t)sprintf(names[i], "many-%d", i % 30);
        many[i].key = names[i];
        CHECK(i % 3 == 0 || keyway_set(cache, names[i], many[i].key_len, names[i], many[i].key_len, 0, 0) == KEYWAY_OK);
    }
    many[20].key = NULL;
    CHECK(keyway_get_many(cache, many, MANY, &value) == KEYWAY_ERROR_ARGUMENT);
    for (int i = 0; i < MANY; i++) {
        if (i == 20)
            CHECK(many[i].result == KEYWAY_ERROR_ARGUMENT);
        else if (i % 30 % 3 == 0)
            CHECK(many[i].result == KEYWAY_NOT_FOUND && many[i].value == NULL);
        else
            CHECK(many[i].result == KEYWAY_OK && strcmp(many[i].value, names[i]) == 0);
    }
    free(value);

    CHECK(keyway_delete(cache, KEY("verb")) == KEYWAY_OK);
    CHECK(keyway_delete(cache, KEY("verb")) == KEYWAY_NOT_FOUND);
    CHECK(strcmp(keyway_version(), EXPECTED_VERSION) == 0);
    CHECK(strcmp(keyway_result_name(KEYWAY_NOT_STORED), "KEYWAY_NOT_STORED") == 0);
    CHECK(strcmp(keyway_result_name(-1), "unknown") == 0);
}

static void fetches(void) {
    char buffer[16];
    keyway_item item;
    keyway_fetch_token *token;
    keyway_fetch_options options = {.size = sizeof options, .exptime = 100, .options = KEYWAY_FETCH_NO_WAIT};

    CHECK(keyway_fetch_begin(cache, KEY("from-server"), NULL, buffer, sizeof buffer, &item, &token) == KEYWAY_OK);
    CHECK(token == NULL && item.value_len == 5 && item.flags == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(keyway_fetch_begin(cache, KEY("fetched"), &options, buffer, sizeof buffer, &item, &token) == KEYWAY_COMPUTE);
    CHECK(token != NULL && item.value_len == 0 && !keyway_fetch_has_old(token));
    // For one that may only read, its server does it.
    CHECK(keyway_fetch_store(token, KEY("value")) == KEYWAY_OK);
    CHECK(has("fetched", "value"));
    CHECK(keyway_delete(cache, KEY("fetched")) == KEYWAY_OK);
}

static void flushing(void) {
    keyway *own = keyway_open("memfd", NULL);
    char buffer[1];
    CHECK(own != NULL);
    CHECK(keyway_set(own, KEY("key"), KEY("v"), 0, 0) == KEYWAY_OK);
    CHECK(keyway_flush_all(own, 0) == KEYWAY_OK);
    CHECK(keyway_get(own, KEY("key"), buffer, sizeof buffer, NULL) == KEYWAY_NOT_FOUND);
    CHECK(stat_of(own, "cmd_flush") == 1 && stat_of(own, "sessions") == 1);
    keyway_close(own);
}

static void errors(const char *place, const char *directory) {
    char buffer[8], path[512];
    keyway_item item;
    keyway_entry entry = {.key = NULL, .key_len = 3};
    keyway_options options = {.size = sizeof options};
    size_t count = 3;
    void *value;
    char *large = calloc(1, 2 << 20);

    CHECK(keyway_get(NULL, KEY("key"), buffer, sizeof buffer, NULL) == KEYWAY_ERROR_ARGUMENT && says("NULL"));
    CHECK(keyway_error() == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get(cache, NULL, 3, buffer, sizeof buffer, NULL) == KEYWAY_ERROR_ARGUMENT && says("key"));
    CHECK(keyway_get(cache, KEY("key"), NULL, 8, NULL) == KEYWAY_ERROR_ARGUMENT && says("buffer"));
    CHECK(keyway_get(cache, KEY("key"), buffer, SIZE_MAX, NULL) == KEYWAY_ERROR_ARGUMENT && says("size"));
    CHECK(keyway_gets(cache, KEY("key"), buffer, (size_t) PTRDIFF_MAX + 1, NULL) == KEYWAY_ERROR_ARGUMENT && says("size"));
    CHECK(keyway_gat(cache, KEY("key"), 0, buffer, SIZE_MAX, NULL) == KEYWAY_ERROR_ARGUMENT && says("size"));
    CHECK(keyway_get_alloc(cache, KEY("key"), NULL, NULL) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get_many(cache, NULL, 1, &value) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_get_many(cache, &entry, SIZE_MAX, &value) == KEYWAY_ERROR_ARGUMENT && says("entries"));
    CHECK(keyway_get_many(cache, &entry, 1, &value) == KEYWAY_ERROR_ARGUMENT && value == NULL);
    CHECK(entry.result == KEYWAY_ERROR_ARGUMENT && entry.value == NULL);
    CHECK(keyway_set(cache, KEY("key"), NULL, 3, 0, 0) == KEYWAY_ERROR_ARGUMENT && says("value"));
    CHECK(keyway_set(cache, KEY("key"), buffer, SIZE_MAX, 0, 0) == KEYWAY_ERROR_ARGUMENT && says("length"));
    CHECK(keyway_set(cache, "", 0, KEY("v"), 0, 0) == KEYWAY_ERROR_KEY_LENGTH && says("250"));
    CHECK(keyway_get(cache, "x", SIZE_MAX, buffer, 8, NULL) == KEYWAY_ERROR_KEY_LENGTH);
    CHECK(keyway_set(cache, KEY("key"), large, 2 << 20, 0, 0) == KEYWAY_ERROR_TOO_LARGE && says("1048576"));
    CHECK(keyway_get(cache, KEY("from-server"), buffer, 2, &item) == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    CHECK(item.value_len == 5 && says("5 bytes") && says("2"));
    CHECK(keyway_incr(cache, KEY("from-server"), 1, NULL) == KEYWAY_ERROR_NOT_A_NUMBER && says("number"));
    CHECK(keyway_stats(cache, NULL, &count) == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_stats(cache, NULL, NULL) == KEYWAY_ERROR_ARGUMENT);
    count = 0;
    CHECK(keyway_stats(cache, NULL, &count) == KEYWAY_ERROR_BUFFER_TOO_SMALL && count > 30);
    // What succeeds or misses leaves the last failure alone.
    CHECK(keyway_get(cache, KEY("absent"), buffer, 8, NULL) == KEYWAY_NOT_FOUND);
    CHECK(keyway_error() == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    free(large);

    CHECK(keyway_open(NULL, NULL) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT);
    CHECK(keyway_open("", NULL) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT);
    options.size = 8;
    CHECK(keyway_open(place, &options) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT && says("32"));
    options.size = sizeof options;
    options.flags = 1u << 31;
    CHECK(keyway_open(place, &options) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT && says("0x80000000"));
    options.flags = 0;
    options.mode = 01777;
    CHECK(keyway_open(place, &options) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT && says("0o1777"));
    options.mode = 0;
    snprintf(path, sizeof path, "%s/nothing", directory);
    CHECK(keyway_open(path, &options) == NULL && keyway_error() == KEYWAY_ERROR_ABSENT && says("nothing") && says("keyway_options.memory"));
    CHECK(keyway_open(path, NULL) == NULL && keyway_error() == KEYWAY_ERROR_ABSENT && access(path, F_OK) != 0);
    CHECK(keyway_open(directory, NULL) == NULL && keyway_error() == KEYWAY_ERROR_UNUSABLE);
    snprintf(path, sizeof path, "%s/text", directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs("no region", file) >= 0 && fclose(file) == 0);
    CHECK(keyway_open(path, NULL) == NULL && keyway_error() == KEYWAY_ERROR_UNUSABLE && says("text"));
    snprintf(path, sizeof path, "%s/no-such-directory/region", directory);
    options.memory = 4 << 20;
    CHECK(keyway_open(path, &options) == NULL && keyway_error() == KEYWAY_ERROR_SYSTEM);
    options.memory = 1;
    CHECK(keyway_open("memfd", &options) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT && says("2 MiB"));
    // A longer structure, of a later version: zeros are fine, anything else is not known here.
    struct {
        keyway_options known;
        uint64_t later;
    } longer = {.known = {.size = sizeof longer}};
    keyway *other = keyway_open("memfd", &longer.known);
    CHECK(other != NULL);
    keyway_close(other);
    longer.later = 1;
    CHECK(keyway_open("memfd", &longer.known) == NULL && keyway_error() == KEYWAY_ERROR_ARGUMENT);
    keyway_close(NULL);
    keyway_free(NULL);
}

// Out of descriptors: opening fails and says so, and what is open goes on.
static void descriptors(const char *place) {
    struct rlimit old, none;
    // A process that may only read has its connection from now on. poll(2) takes at most as many entries as the limit says.
    if (!own_sessions)
        CHECK(keyway_set(cache, KEY("few"), KEY("v"), 0, 0) == KEYWAY_OK);
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    none = old;
    none.rlim_cur = own_sessions ? 0 : 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(keyway_open(place, NULL) == NULL && keyway_error() == KEYWAY_ERROR_SYSTEM);
    CHECK(has("from-server", "hello"));
    CHECK(keyway_set(cache, KEY("few"), KEY("v"), 0, 0) == KEYWAY_OK);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
}

static void *worker(void *argument) {
    char key[32], buffer[32];
    keyway_item item;
    for (int round = 0; round < ROUNDS; round++) {
        size_t len = (size_t)snprintf(key, sizeof key, "thread-%d-%d", *(int *)argument, round % 64);
        CHECK(keyway_set(cache, key, len, key, len, 0, 0) == KEYWAY_OK);
        CHECK(keyway_get(cache, key, len, buffer, sizeof buffer, &item) == KEYWAY_OK);
        CHECK(item.value_len == len && memcmp(key, buffer, len) == 0);
        CHECK(keyway_incr_with_initial(cache, KEY("shared"), 1, 1, 0, NULL) == KEYWAY_OK);
    }
    CHECK(keyway_get(cache, key, 0, buffer, sizeof buffer, NULL) == KEYWAY_ERROR_KEY_LENGTH);
    return NULL;
}

static void threads(void) {
    pthread_t ids[THREADS];
    int numbers[THREADS];
    uint64_t number;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK) == 0);
    CHECK(keyway_set(cache, KEY(""), NULL, 0, 0, 0) == KEYWAY_ERROR_KEY_LENGTH);
    CHECK(keyway_set(cache, KEY("key"), NULL, 1, 0, 0) == KEYWAY_ERROR_ARGUMENT);
    uint64_t before = stat_of(cache, "sessions");
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&ids[i], &attributes, worker, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    CHECK(keyway_incr(cache, KEY("shared"), 0, &number) == KEYWAY_OK && number == THREADS * ROUNDS);
    CHECK(stat_of(cache, "sessions") == before);
    // Failures are each thread's own.
    CHECK(keyway_error() == KEYWAY_ERROR_ARGUMENT);
}

static void *forever(void *argument) {
    char value[64];
    memset(value, 'f', sizeof value);
    for (;;) {
        CHECK(keyway_set(cache, KEY("forever"), value, sizeof value, 0, 0) == KEYWAY_OK);
        *(volatile int *)argument = 1;
        pthread_testcancel();
    }
}

static void cancellation(void) {
    pthread_t id;
    volatile int begun = 0;
    uint64_t before = stat_of(cache, "sessions");
    CHECK(pthread_create(&id, NULL, forever, (void *)&begun) == 0);
    while (!begun) sched_yield();
    CHECK(pthread_cancel(id) == 0 && pthread_join(id, NULL) == 0);
    CHECK(stat_of(cache, "sessions") == before);
}

static sigjmp_buf out;
static void leave(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

// A buffer that is not there: the fault is the caller's, in its own memory. A handler that jumps out of the call leaves
// the thread without its session; everybody else goes on.
static void *jumper(void *argument) {
    struct sigaction action = {.sa_handler = leave, .sa_flags = SA_NODEFER}, old;
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)argument;
    CHECK(nowhere != MAP_FAILED && sigaction(SIGSEGV, &action, &old) == 0);
    if (sigsetjmp(out, 1) == 0) {
        keyway_get(cache, KEY("from-server"), nowhere, 4096, NULL);
        CHECK(!"the buffer is not there");
    }
    CHECK(sigaction(SIGSEGV, &old, NULL) == 0);
    CHECK(keyway_set(cache, KEY("jump"), KEY("v"), 0, 0) == KEYWAY_ERROR_BUSY && says("thread"));
    munmap(nowhere, 4096);
    return NULL;
}

static void jumping(void) {
    pthread_t id;
    uint64_t before = stat_of(cache, "sessions");
    CHECK(pthread_create(&id, NULL, jumper, NULL) == 0 && pthread_join(id, NULL) == 0);
    CHECK(has("from-server", "hello"));
    CHECK(stat_of(cache, "sessions") == before);
}

static int status_of(pid_t child) {
    int status;
    CHECK(child > 0);
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return status;
}

static void forks(void) {
    pthread_t id;
    volatile int begun = 0;
    CHECK(keyway_set(cache, KEY("parent"), KEY("before"), 0, 0) == KEYWAY_OK);
    uint64_t before = stat_of(cache, "sessions");

    // A child uses the cache, and so does its own child; all end as programs do.
    pid_t child = fork();
    if (child == 0) {
        CHECK(has("parent", "before"));
        CHECK(keyway_set(cache, KEY("child"), KEY("was here"), 0, 0) == KEYWAY_OK);
        CHECK(stat_of(cache, "sessions") == before + own_sessions);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(has("child", "was here"));
            CHECK(keyway_set(cache, KEY("grandchild"), KEY("too"), 0, 0) == KEYWAY_OK);
            exit(0);
        }
        CHECK(status_of(grandchild) == 0);
        CHECK(has("grandchild", "too"));
        keyway_close(cache);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    CHECK(has("child", "was here") && has("grandchild", "too"));
    CHECK(stat_of(cache, "sessions") == before);

    // A child that does not use it, one that closes at once, and one that is killed in the middle.
    if ((child = fork()) == 0) exit(0);
    CHECK(status_of(child) == 0);
    if ((child = fork()) == 0) {
        keyway_close(cache);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    if ((child = fork()) == 0) {
        CHECK(has("parent", "before"));
        raise(SIGKILL);
    }
    CHECK(WIFSIGNALED(status_of(child)));
    CHECK(has("parent", "before"));

    // A child of a process whose other threads are inside calls.
    CHECK(pthread_create(&id, NULL, forever, (void *)&begun) == 0);
    while (!begun) sched_yield();
    for (int i = 0; i < 8; i++) {
        if ((child = fork()) == 0) {
            CHECK(has("parent", "before"));
            CHECK(keyway_incr_with_initial(cache, KEY("forked"), 1, 1, 0, NULL) == KEYWAY_OK);
            exit(0);
        }
        CHECK(status_of(child) == 0);
    }
    CHECK(pthread_cancel(id) == 0 && pthread_join(id, NULL) == 0);
    CHECK(has("forked", "8"));

    // Anonymous memory stays with the parent.
    keyway *own = keyway_open("memfd", NULL);
    CHECK(own != NULL && keyway_set(own, KEY("key"), KEY("v"), 0, 0) == KEYWAY_OK);
    if ((child = fork()) == 0) {
        CHECK(keyway_set(own, KEY("key"), KEY("w"), 0, 0) == KEYWAY_ERROR_ABSENT && says("forked"));
        exit(0);
    }
    CHECK(status_of(child) == 0);
    keyway_close(own);
}

int main(int argc, char **argv) {
    CHECK(argc == 3 || argc == 4);
    // One that may only read has no place in the region.
    own_sessions = argc == 3;
    CHECK(*keyway_message() == 0 && keyway_error() == KEYWAY_OK);
    cache = keyway_open(argv[1], NULL);
    CHECK(cache != NULL);
    verbs();
    fetches();
    flushing();
    errors(argv[1], argv[2]);
    descriptors(argv[1]);
    threads();
    cancellation();
    jumping();
    forks();
    CHECK(has("from-server", "hello"));
    keyway_close(cache);
    puts("OK");
    return 0;
}
