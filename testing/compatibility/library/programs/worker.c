/*
 * A worker of the storm, in C; worker.py is the same in Python, and says what it does.
 *
 * Usage: worker REGION JOURNAL WORKER WORKERS SEED [FAULT]
 */
#include <fcntl.h>
#include <inttypes.h>
#include <keyway.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEYS = 8, COUNTERS = 4, WORDS = 32, LARGE = 70000, ROOM = LARGE + 100 };
enum { ATTEMPTED = 0, ACKNOWLEDGED = KEYS, INCR = 2 * KEYS, CAS = 2 * KEYS + 2, CHECKS = 2 * KEYS + 4 };

static keyway *cache;
static uint64_t *journal;
static unsigned me, workers;
static uint64_t chance;
static const char *fault = "";
static char found[ROOM], due[ROOM];

static unsigned below(unsigned limit) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (unsigned)(chance % limit);
}

static uint64_t *word(unsigned worker, unsigned field) { return &journal[1 + worker * WORDS + field]; }
static uint64_t told(unsigned worker, unsigned field) { return __atomic_load_n(word(worker, field), __ATOMIC_SEQ_CST); }
static void tell(unsigned field, uint64_t number) { __atomic_store_n(word(me, field), number, __ATOMIC_SEQ_CST); }

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *what, ...) {
    va_list arguments;
    printf("worker %u: ", me);
    va_start(arguments, what);
    vprintf(what, arguments);
    va_end(arguments);
    printf(" (%s)\n", keyway_message());
    fflush(stdout);
    exit(1);
}

static size_t value_of(char *value, unsigned worker, unsigned key, uint64_t change) {
    size_t size = change % 64 == 0 ? LARGE : change * 7919 % 3000;
    size_t head = (size_t)sprintf(value, "%u:%u:%" PRIu64 ":", worker, key, change);
    memset(value + head, 97 + (int)((worker * 7 + key * 3 + change) % 26), size);
    return head + size;
}

static void change_own(void) {
    unsigned key = below(KEYS);
    uint64_t change = told(me, ATTEMPTED + key) + 1;
    char name[40];
    size_t len = (size_t)sprintf(name, "own:%u:%u", me, key);
    tell(ATTEMPTED + key, change);
    if (change % 5 == 0) {
        keyway_delete(cache, name, len);
    } else {
        size_t size = value_of(due, me, key, change);
        if (!strcmp(fault, "torn"))
            due[size - 1] = '!';
        if (keyway_set(cache, name, len, due, size, 0, 0) != KEYWAY_OK)
            wrong("%s was not set", name);
    }
    if (!strcmp(fault, "ahead"))
        tell(ATTEMPTED + key, ++change);
    tell(ACKNOWLEDGED + key, change);
    if (!strcmp(fault, "forgets"))
        keyway_delete(cache, name, len);
}

static void check_other(void) {
    unsigned worker = below(workers), key = below(KEYS), named_worker, named_key;
    char name[40];
    size_t len = (size_t)sprintf(name, "own:%u:%u", worker, key);
    uint64_t least = told(worker, ACKNOWLEDGED + key), most, change;
    keyway_item item;
    keyway_result result = keyway_get(cache, name, len, found, sizeof found - 1, &item);
    most = told(worker, ATTEMPTED + key);
    if (result == KEYWAY_NOT_FOUND) {
        int deleted = least == 0;
        for (change = least; change <= most; change++)
            deleted |= change % 5 == 0;
        if (!deleted)
            wrong("%s is lost: its change %" PRIu64 " was acknowledged, %" PRIu64 " attempted", name, least, most);
    } else if (result != KEYWAY_OK) {
        wrong("%s: %s", name, keyway_result_name(result));
    } else {
        found[item.value_len] = 0;
        if (sscanf(found, "%u:%u:%" SCNu64 ":", &named_worker, &named_key, &change) != 3)
            wrong("%s is %.40s", name, found);
        if (change % 5 == 0 || change < least || change > most)
            wrong("%s is of change %" PRIu64 ": %" PRIu64 " was acknowledged, %" PRIu64 " attempted", name, change, least, most);
        if (item.value_len != value_of(due, worker, key, change) || memcmp(found, due, item.value_len) != 0)
            wrong("%s is torn: %.40s", name, found);
    }
    tell(CHECKS, told(me, CHECKS) + 1);
}

static void count(void) {
    char name[40];
    uint64_t number;
    size_t len = (size_t)sprintf(name, "incr:%u", below(COUNTERS));
    tell(INCR, told(me, INCR) + 1);
    if (keyway_incr(cache, name, len, 1, &number) != KEYWAY_OK)
        wrong("%s is lost", name);
    tell(INCR + 1, told(me, INCR + 1) + 1);
}

static void count_by_cas(void) {
    char name[40], digits[40];
    size_t len = (size_t)sprintf(name, "cas:%u", below(COUNTERS)), size;
    keyway_item item;
    if (keyway_gets(cache, name, len, found, sizeof found - 1, &item) != KEYWAY_OK)
        wrong("%s is lost", name);
    found[item.value_len] = 0;
    size = (size_t)sprintf(digits, "%" PRIu64, (uint64_t)strtoull(found, NULL, 10) + 1);
    tell(CAS, told(me, CAS) + 1);
    if (keyway_cas(cache, name, len, digits, size, 0, 0, item.cas) == KEYWAY_OK)
        tell(CAS + 1, told(me, CAS + 1) + 1);
    else
        tell(CAS, told(me, CAS) - 1);
}

int main(int argc, char **argv) {
    keyway_options options = {.size = sizeof options};
    struct stat status;
    if (argc < 6)
        return 2;
    me = (unsigned)atoi(argv[3]);
    workers = (unsigned)atoi(argv[4]);
    chance = strtoull(argv[5], NULL, 10) * 2654435761u + 1;
    if (argc > 6)
        fault = argv[6];
    int file = open(argv[2], O_RDWR);
    if (file < 0 || fstat(file, &status) != 0)
        wrong("no journal");
    journal = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (journal == MAP_FAILED)
        wrong("no journal");
    cache = keyway_open(argv[1], &options);
    if (cache == NULL)
        wrong("no region");
    static void (*const turns[])(void) = {change_own, check_other, check_other, count, count_by_cas};
    for (unsigned turn = 0; __atomic_load_n(&journal[0], __ATOMIC_SEQ_CST) == 0; turn++)
        turns[turn % 5]();
    keyway_close(cache);
    return 0;
}
