/* Calls whose arguments change while they run, or overlap: enemy, whatever a program does to its own memory during a call.
 *
 *     changing REGION SECONDS thread|process|signal [checksums]
 *
 * Another thread, another process (the memory is shared), or a signal handler of the calling thread writes to the arguments all the time:
 * keys, values, entries of keyway_get_many(), the number of statistics. Then each function gets arguments that lie over one another at
 * random offsets. The region must stay sound, its items countable, and a value that a get returns must be whole and its key's. */
#define _GNU_SOURCE
#include <keyway.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(is_so)                                                                                                              \
    do {                                                                                                                          \
        if (!(is_so)) {                                                                                                           \
            fprintf(stderr, "line %d: %s: %s (%s)\n", __LINE__, #is_so, keyway_message(), step);                                 \
            _exit(1);                                                                                                             \
        }                                                                                                                         \
    } while (0)

enum { LETTERS = 26, VALUE_MAX = 3000, ARENA = 4096 };

/* What another thread or process changes. */
typedef struct {
    char key[256];
    char value[VALUE_MAX];
    keyway_entry entries[8];
    size_t room;
    volatile int is_over;
} arguments;

static arguments *args;
static keyway *cache;
static const char *step = "begin";
static size_t key_len = 16;
static uint64_t seed = 88172645463325252u;

static uint64_t chance(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The arguments' next state. The key's last byte and a middle one are the same letter, so that a key that is read twice is another one. */
static void change(void) {
    static unsigned turn;
    unsigned letter = 'A' + ++turn % LETTERS;
    volatile char *key = args->key;
    key[key_len - 1] = (char)letter;
    key[key_len / 2] = (char)letter;
    memset(args->value, (int)letter, turn % 4 ? 64 : VALUE_MAX);
    volatile keyway_entry *entry = &args->entries[turn % 8];
    entry->key_len = key_len - turn % 2;
    entry->key = args->key + turn % 2;
    *(volatile size_t *)&args->room = turn % 3 * 10;
}

static void *change_always(void *unused) {
    (void)unused;
    while (!args->is_over)
        change();
    return NULL;
}

static void on_signal(int number) {
    (void)number;
    change();
}

/* Letters that were stored, digits that were counted, and the blanks that follow a number which has become shorter: 10 less 1 is "9 ". */
static int is_whole(const char *value, size_t len) {
    char before = 0;
    for (size_t i = 0; i < len; before = value[i++]) {
        int is_digit = value[i] >= '0' && value[i] <= '9', is_letter = value[i] >= 'A' && value[i] <= 'Z';
        int is_padding = value[i] == ' ' && (before == ' ' || (before >= '0' && before <= '9'));
        if (!is_digit && !is_letter && !is_padding)
            return 0;
    }
    return 1;
}

static int is_answer(keyway_result result) { return result < KEYWAY_ERROR_ARGUMENT; }

static int is_cleared(const keyway_item *item) {
    return item->value_len == 0 && item->cas == 0 && item->ttl_s == 0 && item->flags == 0;
}

/* One call of each function, with the arguments that change. */
static void call(int verb) {
    static char buffer[8 * VALUE_MAX];
    keyway_item item;
    memset(&item, 0xEE, sizeof item);
    uint64_t number = 0xEEEEEEEEEEEEEEEE;
    void *block = &item;
    const char *key = args->key;
    keyway_result result = KEYWAY_OK;
    size_t value_len = 1 + chance() % (chance() % 8 ? 200 : VALUE_MAX - 1);
    switch (verb) {
    case 0:
        result = keyway_set(cache, key, key_len, args->value, value_len, 0, 7);
        break;
    case 1:
        result = keyway_add(cache, key, key_len, args->value, value_len, 0, 7);
        break;
    case 2:
        result = keyway_replace(cache, key, key_len, args->value, value_len, 0, 7);
        break;
    case 3:
        result = keyway_append(cache, key, key_len, args->value, 1 + value_len % 8);
        break;
    case 4:
        result = keyway_prepend(cache, key, key_len, args->value, 1 + value_len % 8);
        break;
    case 5:
        result = keyway_gets(cache, key, key_len, buffer, sizeof buffer, &item);
        if (result == KEYWAY_OK)
            result = keyway_cas(cache, key, key_len, args->value, value_len, 0, 7, item.cas);
        break;
    case 6:
        result = keyway_get(cache, key, key_len, buffer, sizeof buffer, &item);
        CHECK(result == KEYWAY_OK ? is_whole(buffer, item.value_len) : result != KEYWAY_NOT_FOUND || is_cleared(&item));
        break;
    case 7:
        result = keyway_gat(cache, key, key_len, 1000, buffer, sizeof buffer, &item);
        CHECK(result == KEYWAY_OK ? is_whole(buffer, item.value_len) : result != KEYWAY_NOT_FOUND || is_cleared(&item));
        break;
    case 8:
    case 9:
        result = verb == 8 ? keyway_get_alloc(cache, key, key_len, &block, &item)
                           : keyway_gat_alloc(cache, key, key_len, 1000, &block, &item);
        CHECK(result == KEYWAY_OK ? is_whole(block, item.value_len) : block == NULL && is_cleared(&item));
        keyway_free(block);
        break;
    case 10: {
        result = keyway_get_many(cache, args->entries, 8, &block);
        for (int i = 0; i < 8; i++) {
            keyway_entry *entry = &args->entries[i];
            CHECK(entry->result == KEYWAY_OK ? is_whole(entry->value, entry->item.value_len) : entry->value == NULL);
        }
        keyway_free(block);
        break;
    }
    case 11:
        result = keyway_delete(cache, key, key_len);
        break;
    case 12:
        result = keyway_incr(cache, key, key_len, 1, &number);
        CHECK(result == KEYWAY_OK || number == 0);
        break;
    case 13:
        result = keyway_decr_with_initial(cache, key, key_len, 1, 5, 0, &number);
        CHECK(result == KEYWAY_OK || number == 0);
        break;
    case 14:
        result = keyway_touch(cache, key, key_len, 1000);
        break;
    default: {
        static keyway_stat stats[400];
        CHECK(args->room <= 400);
        result = keyway_stats(cache, stats, &args->room);
        CHECK(result == KEYWAY_OK || result == KEYWAY_ERROR_BUFFER_TOO_SMALL);
        return;
    }
    }
    /* A number has no letters, and letters are no number. */
    CHECK(is_answer(result) || result == KEYWAY_ERROR_NOT_A_NUMBER);
}

enum { VERBS = 16 };

/* Calls for so long while the arguments change, with keys of this length. */
static void changing(const char *how, double seconds, size_t len) {
    step = how;
    key_len = len;
    memset(args->key, 'k', sizeof args->key);
    memset(args->value, 'A', VALUE_MAX);
    args->is_over = 0;
    for (int i = 0; i < 8; i++)
        args->entries[i] = (keyway_entry){.key = args->key, .key_len = len};
    change();
    pthread_t thread;
    pid_t process = 0;
    if (strcmp(how, "thread") == 0) {
        CHECK(pthread_create(&thread, NULL, change_always, NULL) == 0);
    } else if ((process = fork()) == 0) {
        pid_t parent = getppid();
        if (strcmp(how, "process") == 0)
            change_always(NULL);
        while (!args->is_over && kill(parent, SIGUSR1) == 0) {
        }
        _exit(0);
    }
    double end = now_s() + seconds;
    while (now_s() < end)
        for (int i = 0; i < 50; i++)
            call((int)(chance() % VERBS));
    args->is_over = 1;
    if (process == 0)
        CHECK(pthread_join(thread, NULL) == 0);
    else
        CHECK(waitpid(process, NULL, 0) == process);
}

/* The key of a number, and its value: it begins with the next number's key, so a get whose result goes over its own key finds a key there. */
static void name(char *key, unsigned number) {
    char text[16];
    snprintf(text, sizeof text, "over-%07u", number);
    memcpy(key, text, 12);
}

static size_t value_of(char *value, unsigned number) {
    size_t len = 40 + number * 37 % 600;
    memset(value, '.', len);
    name(value, (number + 1) % 64);
    name(value + 13, number);
    return len;
}

/* Functions whose arguments overlap, while two other processes store the same items. */
static void overlapping(const char *region, double seconds) {
    step = "overlapping";
    static char arena[ARENA + sizeof(keyway_item)] __attribute__((aligned(16)));
    char key[12], value[1024], got[1024];
    pid_t writers[2];
    for (unsigned i = 0; i < 64; i++) {
        name(key, i);
        CHECK(keyway_set(cache, key, 12, value, value_of(value, i), 0, i) == KEYWAY_OK);
    }
    for (int j = 0; j < 2; j++) {
        if ((writers[j] = fork()) == 0) {
            keyway *own = keyway_open(region, NULL);
            CHECK(own != NULL);
            seed += (uint64_t)j + 1;
            while (!args->is_over) {
                unsigned i = chance() % 64;
                name(key, i);
                CHECK(keyway_set(own, key, 12, value, value_of(value, i), 0, i) == KEYWAY_OK);
            }
            keyway_close(own);
            _exit(0);
        }
        CHECK(writers[j] > 0);
    }
    double end = now_s() + seconds;
    while (now_s() < end) {
        for (int turn = 0; turn < 200; turn++) {
            unsigned i = chance() % 64;
            size_t expected = value_of(value, i);
            /* Over the beginning of the buffer mostly, and anywhere in it. */
            char *buffer = arena + chance() % 512, *where = buffer + (chance() % 2 ? 0 : chance() % 700);
            keyway_item *item = (keyway_item *)(arena + chance() % (ARENA / 16) * 16);
            int is_apart = (char *)(item + 1) <= buffer || (char *)item >= buffer + 1024;
            name(where, i);
            switch (chance() % 8) {
            case 0:
            case 1:
                CHECK(keyway_get(cache, where, 12, buffer, 1024, item) == KEYWAY_OK);
                CHECK(!is_apart || (item->value_len == expected && item->flags == i && memcmp(buffer, value, expected) == 0));
                break;
            case 2:
                CHECK(keyway_gets(cache, where, 12, buffer, 1024, item) == KEYWAY_OK);
                CHECK(!is_apart || (item->cas != 0 && memcmp(buffer, value, expected) == 0));
                break;
            case 3:
                CHECK(keyway_gat(cache, where, 12, 0, buffer, 1024, item) == KEYWAY_OK);
                CHECK(!is_apart || memcmp(buffer, value, expected) == 0);
                break;
            case 4: {
                /* The place for the block, and the item, over the key. */
                void **block = (void **)(arena + chance() % 64 * 8);
                char *over = (char *)block + chance() % 8;
                name(over, i);
                keyway_result result = keyway_get_alloc(cache, over, 12, block, NULL);
                CHECK(result == KEYWAY_OK && memcmp(*block, value, expected) == 0);
                free(*block);
                break;
            }
            case 5: {
                /* The number over the key of a counter. */
                uint64_t *number = (uint64_t *)(arena + chance() % 64 * 8), before = 0, after = 0;
                char *over = (char *)number + chance() % 8;
                memcpy(over, "over-counter", 12);
                CHECK(keyway_incr_with_initial(cache, over, 12, 1, 1, 0, number) == KEYWAY_OK);
                before = *number;
                memcpy(over, "over-counter", 12);
                CHECK(keyway_incr(cache, over, 12, 3, number) == KEYWAY_OK);
                after = *number;
                CHECK(after == before + 3);
                break;
            }
            case 6: {
                /* Keys in the results of the entries, and the block's place in one. */
                keyway_entry entries[4];
                for (unsigned n = 0; n < 4; n++) {
                    char *over = (char *)&entries[(n + 1) % 4].item;
                    name(over, (i + n) % 64);
                    entries[n].key = over;
                    entries[n].key_len = 12;
                }
                void *block = NULL;
                CHECK(keyway_get_many(cache, entries, 4, &block) == KEYWAY_OK);
                for (unsigned n = 0; n < 4; n++) {
                    size_t len = value_of(got, (i + n) % 64);
                    CHECK(entries[n].result == KEYWAY_OK && entries[n].item.value_len == len);
                    CHECK(memcmp(entries[n].value, got, len) == 0);
                }
                keyway_free(block);
                break;
            }
            default: {
                /* Key and value are the same bytes. */
                char *both = arena + chance() % 512;
                memcpy(both, "over-itself.", 12);
                CHECK(keyway_set(cache, both, 12, both + chance() % 4, 8 + chance() % 500, 0, 0) == KEYWAY_OK);
                size_t at = chance() % 8;
                CHECK(keyway_append(cache, both, 12, both + at, 4) == KEYWAY_OK);
                CHECK(keyway_get(cache, both, 12, got, sizeof got, item) == KEYWAY_OK);
            }
            }
        }
    }
    args->is_over = 1;
    for (int j = 0; j < 2; j++) {
        int status = 0;
        CHECK(waitpid(writers[j], &status, 0) == writers[j] && status == 0);
    }
}

/* Two threads get different items to one place: a mistake, which harms no other program. */
static char one_place[VALUE_MAX];

static void *get_to_one_place(void *key) {
    while (!args->is_over)
        CHECK(keyway_get(cache, key, 9, one_place, sizeof one_place, NULL) == KEYWAY_OK);
    return NULL;
}

static void sharing(double seconds) {
    step = "sharing";
    static char keys[2][16] = {"one-place", "two-place"};
    pthread_t threads[2];
    args->is_over = 0;
    for (int i = 0; i < 2; i++) {
        memset(args->value, 'a' + i, VALUE_MAX);
        CHECK(keyway_set(cache, keys[i], 9, args->value, VALUE_MAX, 0, 0) == KEYWAY_OK);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, get_to_one_place, keys[i]) == 0);
    struct timespec rest = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&rest, NULL);
    args->is_over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(keyway_get(cache, keys[i], 9, one_place, sizeof one_place, NULL) == KEYWAY_OK && one_place[VALUE_MAX - 1] == 'a' + i);
}

/* A store of a value that changes is a store: the item is there after it. */
static void value_changes(double seconds) {
    step = "a value changes";
    static char got[VALUE_MAX];
    pthread_t thread;
    keyway_item item;
    args->is_over = 0;
    memset(args->value, 'A', VALUE_MAX);
    CHECK(pthread_create(&thread, NULL, change_always, NULL) == 0);
    double end = now_s() + seconds;
    while (now_s() < end) {
        size_t len = 1 + chance() % (VALUE_MAX - 1);
        CHECK(keyway_set(cache, "stable", 6, args->value, len, 0, 0) == KEYWAY_OK);
        CHECK(keyway_get(cache, "stable", 6, got, sizeof got, &item) == KEYWAY_OK && item.value_len == len);
        CHECK(is_whole(got, len));
    }
    args->is_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* What a call that fails as a whole leaves in its outputs. */
static void failing(void) {
    step = "failing";
    keyway_entry entries[20];
    memset(entries, 0xEE, sizeof entries);
    for (int i = 0; i < 20; i++) {
        entries[i].key = "over-0000001";
        entries[i].key_len = 12;
    }
    void *block = entries;
    CHECK(keyway_get_many(cache, entries, 20, &block) == KEYWAY_OK);
    keyway_free(block);
    keyway *nothing = NULL;
    uint64_t number = 7;
    size_t count = 7;
    keyway_item item = {.value_len = 7, .cas = 7, .ttl_s = 7, .flags = 7};
    CHECK(keyway_get_many(nothing, entries, 20, &block) == KEYWAY_ERROR_ARGUMENT && block == NULL);
    for (int i = 0; i < 20; i++)
        CHECK(entries[i].result == KEYWAY_ERROR_ARGUMENT && entries[i].value == NULL && is_cleared(&entries[i].item));
    CHECK(keyway_get_many(cache, entries, 20, NULL) == KEYWAY_ERROR_ARGUMENT);
    block = entries;
    CHECK(keyway_get_many(cache, NULL, 1, &block) == KEYWAY_ERROR_ARGUMENT && block == NULL);
    block = entries;
    CHECK(keyway_get_many(cache, entries, SIZE_MAX / 2, &block) == KEYWAY_ERROR_ARGUMENT && block == NULL);
    char buffer[64];
    CHECK(keyway_get(nothing, "k", 1, buffer, 64, &item) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    item.cas = 7;
    CHECK(keyway_gets(cache, NULL, 1, buffer, 64, &item) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    item.cas = 7;
    CHECK(keyway_gat(cache, "k", 0, 0, buffer, 64, &item) == KEYWAY_ERROR_KEY_LENGTH && is_cleared(&item));
    item.cas = 7;
    CHECK(keyway_get(cache, "k", 1, NULL, 64, &item) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    item.cas = 7, block = entries;
    CHECK(keyway_get_alloc(cache, "k", 1000, &block, &item) == KEYWAY_ERROR_KEY_LENGTH && is_cleared(&item) && block == NULL);
    item.cas = 7;
    CHECK(keyway_gat_alloc(cache, "k", 1, 0, NULL, &item) == KEYWAY_ERROR_ARGUMENT && is_cleared(&item));
    CHECK(keyway_incr(nothing, "k", 1, 1, &number) == KEYWAY_ERROR_ARGUMENT && number == 0);
    number = 7;
    CHECK(keyway_set(cache, "letters", 7, "x", 1, 0, 0) == KEYWAY_OK);
    CHECK(keyway_decr(cache, "letters", 7, 1, &number) == KEYWAY_ERROR_NOT_A_NUMBER && number == 0);
    number = 7;
    CHECK(keyway_incr_with_initial(cache, NULL, 7, 1, 1, 0, &number) == KEYWAY_ERROR_ARGUMENT && number == 0);
    keyway_stat stat;
    CHECK(keyway_stats(nothing, &stat, &count) == KEYWAY_ERROR_ARGUMENT && count == 0);
    count = 7;
    CHECK(keyway_stats(cache, NULL, &count) == KEYWAY_ERROR_ARGUMENT && count == 0);
    item.cas = 7;
    CHECK(keyway_get(cache, "none", 4, buffer, 64, &item) == KEYWAY_NOT_FOUND && is_cleared(&item));
}

/* As many items as are counted. */
static void counts_are_exact(void) {
    step = "counts";
    static keyway_stat stats[400];
    size_t count = 400, items = 0;
    CHECK(keyway_stats(cache, stats, &count) == KEYWAY_OK);
    char key[256];
    uint64_t corrupt = 1, counted = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(stats[i].name, "curr_items") == 0)
            counted = stats[i].value;
        if (strcmp(stats[i].name, "corrupt") == 0)
            corrupt = stats[i].value;
    }
    CHECK(corrupt == 0);
    for (unsigned i = 0; i < 64; i++) {
        name(key, i);
        items += keyway_get(cache, key, 12, NULL, 0, NULL) != KEYWAY_NOT_FOUND;
    }
    const char *others[] = {"over-counter", "over-itself.", "one-place", "two-place", "stable", "letters"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        items += keyway_get(cache, others[i], strlen(others[i]), NULL, 0, NULL) != KEYWAY_NOT_FOUND;
    const size_t lengths[] = {3, 7, 12, 16, 40, 250};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        /* The two letters may differ: each byte is loaded once, but not both at once. */
        size_t len = lengths[l];
        memset(key, 'k', sizeof key);
        for (char a = 'A'; a < 'A' + LETTERS; a++)
            for (char b = 'A'; b < 'A' + LETTERS; b++) {
                key[len / 2] = a;
                key[len - 1] = b;
                items += keyway_get(cache, key, len, NULL, 0, NULL) != KEYWAY_NOT_FOUND;
            }
    }
    if (items != counted)
        fprintf(stderr, "%zu items are found, %zu are counted\n", items, (size_t)counted);
    CHECK(items == counted);
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    double seconds = atof(argv[2]);
    const char *how = argv[3];
    keyway_options options = {.size = sizeof options, .memory = 32 << 20, .flags = argc > 4 ? KEYWAY_CHECKSUMS : 0};
    cache = keyway_open(argv[1], &options);
    CHECK(cache != NULL);
    args = mmap(NULL, sizeof *args, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(args != MAP_FAILED);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    const size_t lengths[] = {3, 7, 12, 16, 40, 250};
    for (int i = 0; i < 6; i++)
        changing(how, seconds / 10, lengths[i]);
    args->is_over = 0;
    overlapping(argv[1], seconds / 5);
    value_changes(seconds / 10);
    sharing(seconds / 10);
    failing();
    counts_are_exact();
    keyway_close(cache);
    puts("OK");
    return 0;
}
