/* Fetches in C: enemy, a value that was read before a delete and is found after it, two that compute at once, and a token that outlives
 * what it is for.
 *
 *     fetch REGION
 *
 * Nothing here depends on how long something takes: what has to happen is waited for. Prints OK. */
#define _GNU_SOURCE
#include <keyway.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_so)                                                                              \
    do {                                                                                          \
        if (!(is_so)) {                                                                           \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #is_so, keyway_message());            \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)
#define KEY(text) (text), (sizeof(text) - 1)

/* Seconds after which something hangs. */
enum { HANGS_AFTER = 60, LARGE = 64 };

static keyway *cache;
static char buffer[LARGE];
static keyway_item item;

static int says(const char *text) { return strstr(keyway_message(), text) != NULL; }

static int is_cleared(const keyway_item *of) { return of->value_len == 0 && of->cas == 0 && of->ttl_s == 0 && of->flags == 0; }

/* Whether it has this value. */
static int has(const char *key, const char *expected) {
    char value[LARGE];
    keyway_item its;
    keyway_result result = keyway_get(cache, key, strlen(key), value, sizeof value, &its);
    if (expected == NULL) return result == KEYWAY_NOT_FOUND;
    return result == KEYWAY_OK && its.value_len == strlen(expected) && memcmp(value, expected, its.value_len) == 0;
}

/* Begins a fetch; the item and the token are what a call has to set. */
static keyway_result begin(const char *key, const keyway_fetch_options *options, keyway_fetch_token **token) {
    memset(&item, 0xEE, sizeof item);
    *token = (keyway_fetch_token *)&item;
    keyway_result result = keyway_fetch_begin(cache, key, strlen(key), options, buffer, sizeof buffer, &item, token);
    CHECK((result == KEYWAY_COMPUTE) == (*token != NULL));
    return result;
}

static keyway_fetch_token *computes(const char *key, const keyway_fetch_options *options) {
    keyway_fetch_token *token;
    CHECK(begin(key, options, &token) == KEYWAY_COMPUTE);
    return token;
}

/* A fetch that another thread begins. */
typedef struct {
    const char *key;
    const keyway_fetch_options *options;
    keyway_fetch_token *token;
    keyway_result result;
    char value[LARGE];
    keyway_item item;
    volatile int has_begun;
} elsewhere;

static void *begins(void *argument) {
    elsewhere *it = argument;
    it->has_begun = 1;
    it->result = keyway_fetch_begin(cache, it->key, strlen(it->key), it->options, it->value, LARGE, &it->item, &it->token);
    return NULL;
}

/* The result of another thread, which has ended. */
static elsewhere by_another(const char *key, const keyway_fetch_options *options) {
    elsewhere it = {.key = key, .options = options};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, begins, &it) == 0 && pthread_join(thread, NULL) == 0);
    return it;
}

static void *stores(void *token) {
    CHECK(keyway_fetch_store(token, KEY("theirs")) == KEYWAY_OK);
    return NULL;
}

/* Does not wait, and does not compute what another one computes. */
static const keyway_fetch_options AT_ONCE = {
    .size = sizeof AT_ONCE, .options = KEYWAY_FETCH_NO_WAIT | KEYWAY_FETCH_GIVE_UP, .wait_ms = UINT64_MAX, .exptime = 100, .flags = 9};

static void computing(void) {
    keyway_fetch_token *token = computes("row", &AT_ONCE);
    CHECK(!keyway_fetch_has_old(token) && is_cleared(&item) && has("row", NULL));
    CHECK(by_another("row", &AT_ONCE).result == KEYWAY_IN_FLIGHT);
    CHECK(keyway_fetch_store(token, KEY("value")) == KEYWAY_OK);
    CHECK(begin("row", &AT_ONCE, &token) == KEYWAY_OK);
    CHECK(item.value_len == 5 && item.flags == 9 && item.ttl_s > 0 && item.ttl_s <= 100 && memcmp(buffer, "value", 5) == 0);
    CHECK(begin("row", NULL, &token) == KEYWAY_OK && memcmp(buffer, "value", 5) == 0);
    /* Without options: for ever. */
    CHECK(keyway_fetch_store(computes("plain", NULL), NULL, 0) == KEYWAY_OK);
    CHECK(begin("plain", NULL, &token) == KEYWAY_OK && item.value_len == 0 && item.ttl_s == -1 && item.flags == 0);
    /* Another thread ends it. */
    pthread_t thread;
    token = computes("other", &AT_ONCE);
    CHECK(pthread_create(&thread, NULL, stores, token) == 0 && pthread_join(thread, NULL) == 0 && has("other", "theirs"));
    /* Another thread has begun it, and ended without a word. */
    elsewhere left = by_another("left", &AT_ONCE);
    CHECK(left.result == KEYWAY_COMPUTE);
    token = computes("left", &AT_ONCE);
    CHECK(keyway_fetch_store(left.token, KEY("theirs")) == KEYWAY_NOT_STORED && has("left", NULL));
    CHECK(keyway_fetch_store(token, KEY("ours")) == KEYWAY_OK && has("left", "ours"));
}

static void allocating(void) {
    keyway_fetch_token *token = NULL;
    void *value = &token;
    memset(&item, 0xEE, sizeof item);
    CHECK(keyway_fetch_begin_alloc(cache, KEY("block"), NULL, &value, &item, &token) == KEYWAY_COMPUTE);
    CHECK(value == NULL && is_cleared(&item) && token != NULL);
    CHECK(keyway_fetch_store(token, KEY("a value")) == KEYWAY_OK);
    CHECK(keyway_fetch_begin_alloc(cache, KEY("block"), NULL, &value, &item, &token) == KEYWAY_OK && token == NULL);
    CHECK(strcmp(value, "a value") == 0 && item.value_len == 7);
    keyway_free(value);
    CHECK(keyway_fetch_begin_alloc(cache, KEY("block"), NULL, NULL, &item, &token) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
}

/* What changes the key makes the token void. */
static void voiding(void) {
    const char *left[] = {NULL, "newer", NULL};
    for (int how = 0; how < 3; how++) {
        keyway_delete(cache, KEY("void"));
        keyway_fetch_token *token = computes("void", &AT_ONCE);
        switch (how) {
        case 0: CHECK(keyway_delete(cache, KEY("void")) == KEYWAY_NOT_FOUND); break;
        case 1: CHECK(keyway_set(cache, KEY("void"), KEY("newer"), 0, 0) == KEYWAY_OK); break;
        default: CHECK(keyway_flush_all(cache, 0) == KEYWAY_OK);
        }
        CHECK(keyway_fetch_store(token, KEY("older")) == KEYWAY_NOT_STORED && has("void", left[how]));
        token = how == 1 ? NULL : computes("void", &AT_ONCE);
        CHECK(how == 1 || keyway_delete(cache, KEY("void")) == KEYWAY_NOT_FOUND);
        CHECK(how == 1 || keyway_fetch_store_nothing(token) == KEYWAY_NOT_STORED);
        token = how == 1 ? NULL : computes("void", &AT_ONCE);
        CHECK(how == 1 || keyway_delete(cache, KEY("void")) == KEYWAY_NOT_FOUND);
        CHECK(keyway_fetch_abandon(token) == (how == 1 ? KEYWAY_OK : KEYWAY_NOT_STORED));
    }
}

/* Stores a value with an exptime of a second, and waits until a get does not find it. */
static void expire(const char *key, const char *value, const keyway_fetch_options *options) {
    keyway_delete(cache, key, strlen(key));
    CHECK(keyway_fetch_store(computes(key, options), value, strlen(value)) == KEYWAY_OK);
    while (!has(key, NULL))
        usleep(10000);
}

static void old_values(void) {
    keyway_fetch_options options = AT_ONCE;
    keyway_fetch_token *token;
    options.exptime = 1;
    options.stale_while_revalidate_s = options.stale_if_error_s = 1000;
    expire("old", "old value", &options);
    token = computes("old", &options);
    CHECK(keyway_fetch_has_old(token) && item.value_len == 9 && item.flags == 9 && memcmp(buffer, "old value", 9) == 0);
    elsewhere other = by_another("old", &options);
    CHECK(other.result == KEYWAY_STALE && other.token == NULL && other.item.value_len == 9 && memcmp(other.value, "old value", 9) == 0);
    keyway_fetch_options strict = AT_ONCE;
    CHECK(by_another("old", &strict).result == KEYWAY_IN_FLIGHT);
    CHECK(keyway_fetch_abandon(token) == KEYWAY_OK);
    /* Without stale_if_error_s it is there, and not to be used. */
    token = computes("old", &strict);
    CHECK(!keyway_fetch_has_old(token) && is_cleared(&item) && keyway_fetch_abandon(token) == KEYWAY_OK);
    /* An old value that does not fit: its length, and no fetch. */
    memset(&item, 0xEE, sizeof item);
    CHECK(keyway_fetch_begin(cache, KEY("old"), &options, buffer, 8, &item, &token) == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    CHECK(token == NULL && item.value_len == 9 && says("9 bytes") && says("8"));
    /* In a block; then the key is where the value goes. */
    void *value = NULL;
    CHECK(keyway_fetch_begin_alloc(cache, KEY("old"), &options, &value, &item, &token) == KEYWAY_COMPUTE);
    CHECK(keyway_fetch_has_old(token) && strcmp(value, "old value") == 0 && keyway_fetch_abandon(token) == KEYWAY_OK);
    keyway_free(value);
    memcpy(buffer, "old", 3);
    CHECK(keyway_fetch_begin(cache, buffer, 3, &options, buffer, sizeof buffer, &item, &token) == KEYWAY_COMPUTE);
    CHECK(memcmp(buffer, "old value", 9) == 0 && keyway_fetch_store(token, KEY("new value")) == KEYWAY_OK && has("old", "new value"));
}

static void nothing(void) {
    keyway_fetch_options options = AT_ONCE;
    keyway_fetch_token *token;
    CHECK(keyway_fetch_store_nothing(computes("nothing", &options)) == KEYWAY_OK);
    options.negative_ttl_s = 1000;
    CHECK(keyway_fetch_store_nothing(computes("nothing", &options)) == KEYWAY_OK);
    CHECK(begin("nothing", &options, &token) == KEYWAY_NOT_FOUND && is_cleared(&item) && has("nothing", NULL));
    CHECK(keyway_set(cache, KEY("nothing"), KEY("there"), 0, 0) == KEYWAY_OK);
    CHECK(begin("nothing", &options, &token) == KEYWAY_OK);
}

static void waiting(void) {
    keyway_fetch_token *token = computes("slow", &AT_ONCE), *second;
    keyway_fetch_options options = {.size = sizeof options, .wait_ms = UINT64_MAX, .options = KEYWAY_FETCH_GIVE_UP};
    elsewhere it = {.key = "slow", .options = &options};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, begins, &it) == 0);
    while (!it.has_begun)
        usleep(1000);
    /* It may have come as far as the wait, or not: its result is the same. */
    usleep(50000);
    CHECK(keyway_fetch_store(token, KEY("value")) == KEYWAY_OK && pthread_join(thread, NULL) == 0);
    CHECK(it.result == KEYWAY_OK && it.item.value_len == 5 && memcmp(it.value, "value", 5) == 0);

    /* The thread's own flight. */
    token = computes("own", &AT_ONCE);
    CHECK(begin("own", &AT_ONCE, &second) == KEYWAY_ERROR_BUSY && is_cleared(&item) && says("this thread"));
    options = AT_ONCE;
    options.options |= KEYWAY_FETCH_TASKS;
    CHECK(begin("own", &options, &second) == KEYWAY_IN_FLIGHT && is_cleared(&item));
    /* When the wait is over, both compute; the first one stores. */
    options.options = KEYWAY_FETCH_NO_WAIT | KEYWAY_FETCH_TASKS;
    second = computes("own", &options);
    CHECK(keyway_fetch_store(second, KEY("second")) == KEYWAY_OK);
    CHECK(keyway_fetch_store(token, KEY("first")) == KEYWAY_NOT_STORED && has("own", "second"));

    /* So many of a prefix, and another prefix. */
    options = AT_ONCE;
    options.limit = 2;
    options.limit_prefix = "row:";
    options.limit_prefix_len = 4;
    token = computes("row:1", &options);
    second = computes("row:2", &options);
    keyway_fetch_token *third;
    CHECK(begin("row:3", &options, &third) == KEYWAY_LIMITED && is_cleared(&item));
    options.limit_prefix = "user:";
    options.limit_prefix_len = 5;
    CHECK(keyway_fetch_abandon(computes("row:3", &options)) == KEYWAY_OK);
    options.limit_prefix = "row:";
    options.limit_prefix_len = 4;
    CHECK(keyway_fetch_store(token, KEY("one")) == KEYWAY_OK);
    token = computes("row:3", &options);
    CHECK(keyway_fetch_abandon(token) == KEYWAY_OK && keyway_fetch_store_nothing(second) == KEYWAY_OK);
}

static void early(void) {
    /* So eager that it is always due, once it is known how long it took. */
    keyway_fetch_options options = AT_ONCE;
    options.early = 1e300;
    CHECK(keyway_fetch_store(computes("early", &options), KEY("first")) == KEYWAY_OK);
    keyway_fetch_token *token = computes("early", &options);
    CHECK(has("early", "first") && by_another("early", &options).result == KEYWAY_OK);
    CHECK(keyway_fetch_store(token, KEY("second")) == KEYWAY_OK && has("early", "second"));
    CHECK(begin("early", &AT_ONCE, &token) == KEYWAY_OK);
}

static void refused(void) {
    keyway_fetch_options options = {.size = 0};
    keyway_fetch_token *token;
    struct {
        keyway_fetch_options known;
        uint64_t later;
    } longer = {.known = {.size = sizeof longer}};
    CHECK(keyway_set(cache, KEY("there"), KEY("value"), 0, 0) == KEYWAY_OK);
    CHECK(begin("there", &options, &token) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item) && says("72"));
    CHECK(begin("there", &longer.known, &token) == KEYWAY_OK);
    longer.later = 1;
    CHECK(begin("there", &longer.known, &token) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    options.size = sizeof options;
    const double no_beta[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        options.early = no_beta[i];
        CHECK(begin("there", &options, &token) == KEYWAY_ERROR_ARGUMENT && says("early"));
    }
    options.early = 0;
    options.options = 8;
    CHECK(begin("absent", &options, &token) == KEYWAY_ERROR_ARGUMENT && says("0x8"));
    options.options = 0;
    options.limit = 1;
    options.limit_prefix_len = 3;
    CHECK(begin("absent", &options, &token) == KEYWAY_ERROR_ARGUMENT && says("limit"));
    CHECK(begin("", NULL, &token) == KEYWAY_ERROR_KEY_LENGTH && is_cleared(&item));
    memset(&item, 0xEE, sizeof item);
    CHECK(keyway_fetch_begin(cache, KEY("absent"), NULL, buffer, LARGE, &item, NULL) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    CHECK(keyway_fetch_begin(NULL, KEY("absent"), NULL, buffer, LARGE, NULL, &token) == KEYWAY_ERROR_ARGUMENT && token == NULL);
    CHECK(keyway_fetch_begin(cache, NULL, 3, NULL, buffer, LARGE, NULL, &token) == KEYWAY_ERROR_ARGUMENT && token == NULL);
    CHECK(keyway_fetch_begin(cache, KEY("absent"), NULL, NULL, 1, NULL, &token) == KEYWAY_ERROR_ARGUMENT && token == NULL);
    CHECK(keyway_fetch_begin(cache, KEY("absent"), NULL, buffer, SIZE_MAX, NULL, &token) == KEYWAY_ERROR_ARGUMENT && token == NULL);
    CHECK(keyway_fetch_begin(cache, KEY("there"), NULL, buffer, 4, &item, &token) == KEYWAY_ERROR_BUFFER_TOO_SMALL);
    CHECK(token == NULL && item.value_len == 5);
    CHECK(keyway_fetch_store(NULL, KEY("value")) == KEYWAY_ERROR_ARGUMENT && says("token"));
    CHECK(keyway_fetch_store_nothing(NULL) == KEYWAY_ERROR_ARGUMENT && keyway_fetch_abandon(NULL) == KEYWAY_OK);
    CHECK(keyway_fetch_has_old(NULL) == 0);
    /* A store that fails ends the fetch, too. */
    CHECK(keyway_fetch_store(computes("absent", &AT_ONCE), NULL, 1) == KEYWAY_ERROR_ARGUMENT);
    char *large = calloc(1, 2 << 20);
    CHECK(keyway_fetch_store(computes("absent", &AT_ONCE), large, 2 << 20) == KEYWAY_ERROR_TOO_LARGE);
    free(large);
    CHECK(keyway_fetch_abandon(computes("absent", &AT_ONCE)) == KEYWAY_OK);
}

/* A forked child cannot store in its parent's place, and takes nothing from it. */
static void forking(void) {
    keyway_fetch_token *tokens[3] = {computes("fork:0", &AT_ONCE), computes("fork:1", &AT_ONCE), computes("fork:2", &AT_ONCE)};
    pid_t child = fork();
    if (child == 0) {
        alarm(HANGS_AFTER);
        CHECK(keyway_fetch_store(tokens[0], KEY("child")) == KEYWAY_NOT_STORED && has("fork:0", NULL));
        CHECK(keyway_fetch_store_nothing(tokens[1]) == KEYWAY_NOT_STORED);
        CHECK(keyway_fetch_abandon(tokens[2]) == KEYWAY_NOT_STORED);
        keyway_fetch_token *own;
        CHECK(begin("fork:2", &AT_ONCE, &own) == KEYWAY_IN_FLIGHT);
        _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 3; i++)
        CHECK(keyway_fetch_store(tokens[i], KEY("parent")) == KEYWAY_OK);
    CHECK(has("fork:0", "parent") && has("fork:1", "parent") && has("fork:2", "parent"));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    alarm(HANGS_AFTER);
    keyway_options options = {.size = sizeof options, .memory = 16 << 20};
    cache = keyway_open(argv[1], &options);
    CHECK(cache != NULL);
    computing();
    allocating();
    voiding();
    old_values();
    nothing();
    waiting();
    early();
    refused();
    forking();
    /* A token that outlives its cache's handle stores nothing that harms. */
    keyway_fetch_token *late = computes("late", &AT_ONCE);
    keyway_close(cache);
    keyway_fetch_abandon(late);
    puts("OK");
    return 0;
}
